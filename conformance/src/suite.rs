//! The macro, and the list that it and [`Check`](crate::Check) live from.

/// Makes a module of tests that any [`Session`](mk_core::Session) must pass: one for each handler on each network, those of
/// each operator, and those of the session itself.
///
/// It takes the module's name, a [`Config`](crate::Config), and what opens a session: a function or a closure with typed
/// arguments, `|registry: &Registry, hardware: &Hardware, seed: u64|`. Two more may follow:
///
/// - `networks = [Mapped]`: there are only these, and no tests of others;
/// - `skip = why`: a function that says why nothing can be tested here, `fn() -> Option<String>`. The tests then print it and
///   do nothing.
///
/// A new handler needs a generator in this crate and a line in the list of checks; without them `every_handler_is_tested`
/// fails.
#[macro_export]
macro_rules! suite {
    ($name:ident, $config:expr, $open:expr) => {
        $crate::suite!($name, $config, $open, networks = [Mapped, Ordered, Unordered]);
    };
    ($name:ident, $config:expr, $open:expr, networks = [$($network:ident),* $(,)?]) => {
        $crate::suite!($name, $config, $open, networks = [$($network),*], skip = || None::<String>);
    };
    ($name:ident, $config:expr, $open:expr, networks = [$($network:ident),* $(,)?], skip = $skip:expr) => {
        mod $name {
            #[allow(unused_imports, reason = "what opens a session may need them")]
            use super::*;
            // Names that what a caller passes in does not have.
            fn conformance_open(
                registry: &$crate::macro_support::Registry,
                hardware: &$crate::macro_support::Hardware,
                seed: u64,
            ) -> Box<dyn $crate::macro_support::Session> {
                Box::new(($open)(registry, hardware, seed))
            }
            fn conformance_pass(name: &str) {
                let config = $config.networks(&[$($crate::Network::$network),*]);
                if let Some(why) = ($skip)() {
                    println!("skipped: {why}");
                    return;
                }
                let check = $crate::Check::named(name).expect("a check of the list");
                if let Err(error) = check.run(config, &conformance_open) {
                    panic!("{error}");
                }
            }
            $($crate::listed!($network [$crate::tests!]);)*
            $crate::listed!(operators [$crate::tests!]);
            $crate::listed!(session [$crate::tests!]);
        }
    };
}

/// A test for each check of a list.
#[doc(hidden)]
#[macro_export]
macro_rules! tests {
    ($($name:ident = $what:expr,)*) => {
        $(
            #[test]
            fn $name() {
                conformance_pass(stringify!($name));
            }
        )*
    };
}

/// Calls a macro with the checks of one network, of operators, or of the session.
#[doc(hidden)]
#[macro_export]
macro_rules! listed {
    (Mapped [$($then:tt)*]) => {
        $($then)* {
            add = Handler(Mapped, "add"),
            cast = Handler(Mapped, "cast"),
            copy = Handler(Mapped, "copy"),
            gemm = Handler(Mapped, "gemm"),
            nop = Handler(Mapped, "nop"),
            scale = Handler(Mapped, "scale"),
            swiglu = Handler(Mapped, "swiglu"),
            nvlink_put = Handler(Mapped, "nvlink.put"),
            nvlink_get = Handler(Mapped, "nvlink.get"),
            nvlink_put_signal = Handler(Mapped, "nvlink.put_signal"),
            nvlink_reduce_put = Handler(Mapped, "nvlink.reduce_put"),
            nvlink_signal = Handler(Mapped, "nvlink.signal"),
            nvlink_wait = Handler(Mapped, "nvlink.wait"),
        }
    };
    (Ordered [$($then:tt)*]) => {
        $($then)* {
            rdma_ordered_put = Handler(Ordered, "rdma.put"),
            rdma_ordered_get = Handler(Ordered, "rdma.get"),
            rdma_ordered_put_signal = Handler(Ordered, "rdma.put_signal"),
            rdma_ordered_reduce_put = Handler(Ordered, "rdma.reduce_put"),
            rdma_ordered_signal = Handler(Ordered, "rdma.signal"),
            rdma_ordered_wait = Handler(Ordered, "rdma.wait"),
        }
    };
    (Unordered [$($then:tt)*]) => {
        $($then)* {
            rdma_unordered_put = Handler(Unordered, "rdma.put"),
            rdma_unordered_get = Handler(Unordered, "rdma.get"),
            rdma_unordered_put_signal = Handler(Unordered, "rdma.put_signal"),
            rdma_unordered_reduce_put = Handler(Unordered, "rdma.reduce_put"),
            rdma_unordered_signal = Handler(Unordered, "rdma.signal"),
            rdma_unordered_wait = Handler(Unordered, "rdma.wait"),
        }
    };
    (operators [$($then:tt)*]) => {
        $($then)* {
            all_gather_gemm = Operator("all-gather-gemm"),
            regress_flux_17_all_gather_gemm = Shapes("all-gather-gemm"),
        }
    };
    (session [$($then:tt)*]) => {
        $($then)* {
            every_handler_is_tested = Session(every_handler_is_tested),
            tensors_that_do_not_fit_are_refused = Session(refuses_wrong_tensors),
            programs_of_another_world_are_refused = Session(refuses_foreign_programs),
            two_programs_alternate = Session(alternates),
            the_same_data_give_the_same_bits = Session(gives_the_same_bits),
            a_nan_spreads_only_where_it_must = Session(spreads_nan),
        }
    };
}
