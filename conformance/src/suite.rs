//! The macro.

/// Makes a module of tests that any [`Session`](mk_core::Session) must pass: one for each handler on each network, one for
/// each operator, and those of the session itself.
///
/// It takes the module's name, a [`Config`](crate::Config), and what opens a session: a function or a closure with typed
/// arguments, `|registry: &Registry, hardware: &Hardware, seed: u64|`.
///
/// A new handler needs a generator in this crate and a line here; without them `every_handler_is_tested` fails.
#[macro_export]
macro_rules! suite {
    ($name:ident, $config:expr, $open:expr) => {
        mod $name {
            #[allow(unused_imports, reason = "what opens a session may need them")]
            use super::*;
            $crate::suite! { @tests $config, $open;
                handlers {
                    Mapped {
                        add = "add",
                        cast = "cast",
                        copy = "copy",
                        gemm = "gemm",
                        nop = "nop",
                        scale = "scale",
                        swiglu = "swiglu",
                        nvlink_put = "nvlink.put",
                        nvlink_get = "nvlink.get",
                        nvlink_put_signal = "nvlink.put_signal",
                        nvlink_reduce_put = "nvlink.reduce_put",
                        nvlink_signal = "nvlink.signal",
                        nvlink_wait = "nvlink.wait",
                    }
                    Ordered {
                        rdma_ordered_put = "rdma.put",
                        rdma_ordered_get = "rdma.get",
                        rdma_ordered_put_signal = "rdma.put_signal",
                        rdma_ordered_reduce_put = "rdma.reduce_put",
                        rdma_ordered_signal = "rdma.signal",
                        rdma_ordered_wait = "rdma.wait",
                    }
                    Unordered {
                        rdma_unordered_put = "rdma.put",
                        rdma_unordered_get = "rdma.get",
                        rdma_unordered_put_signal = "rdma.put_signal",
                        rdma_unordered_reduce_put = "rdma.reduce_put",
                        rdma_unordered_signal = "rdma.signal",
                        rdma_unordered_wait = "rdma.wait",
                    }
                }
                operators {
                    all_gather_gemm, regress_flux_17_all_gather_gemm = "all-gather-gemm",
                }
            }
        }
    };
    (@tests $config:expr, $open:expr;
        handlers { $($network:ident { $($test:ident = $handler:literal,)* })* }
        operators { $($random:ident, $shapes:ident = $operator:literal,)* }
    ) => {
        fn open(
            registry: &$crate::macro_support::Registry,
            hardware: &$crate::macro_support::Hardware,
            seed: u64,
        ) -> Box<dyn $crate::macro_support::Session> {
            Box::new(($open)(registry, hardware, seed))
        }
        fn pass(result: Result<(), String>) {
            if let Err(error) = result {
                panic!("{error}");
            }
        }
        $($(
            #[test]
            fn $test() {
                pass($crate::handler($config, $crate::Network::$network, $handler, &open));
            }
        )*)*
        $(
            #[test]
            fn $random() {
                pass($crate::operator($config, $operator, &open));
            }
            #[test]
            fn $shapes() {
                pass($crate::operator_shapes($config, $operator, &open));
            }
        )*
        #[test]
        fn every_handler_is_tested() {
            let tested = [$($($handler,)*)*];
            for network in $crate::Network::ALL {
                let registry = network.registry(2, 4, 1).expect("two nodes of two ranks are a world");
                pass($crate::covered(&registry, &tested));
            }
        }
        #[test]
        fn tensors_that_do_not_fit_are_refused() {
            pass($crate::refuses_wrong_tensors($config, &open));
        }
        #[test]
        fn programs_of_another_world_are_refused() {
            pass($crate::refuses_foreign_programs($config, &open));
        }
        #[test]
        fn two_programs_alternate() {
            pass($crate::alternates($config, &open));
        }
        #[test]
        fn the_same_data_give_the_same_bits() {
            pass($crate::gives_the_same_bits(&open));
        }
        #[test]
        fn a_nan_spreads_only_where_it_must() {
            pass($crate::spreads_nan($config, &open));
        }
    };
}
