//! One generator for every handler.

mod add;
mod cast;
mod compute;
mod copy;
mod elementwise;
mod emit;
mod gemm;
mod local_copy;
mod nop;
mod scale;
mod style;
mod swiglu;

pub(crate) use gemm::product;

use crate::context::Generator;
use crate::network::Network;
use mk_core::CommOp;
use style::Style;

/// A handler's generator, and the branches that it must take on a network.
pub(crate) struct Subject {
    pub(crate) handler: &'static str,
    pub(crate) generate: Generator,
    pub(crate) branches: fn(Network) -> Vec<&'static str>,
}

macro_rules! elementwise {
    ($handler:ty, $($branch:literal),*) => {
        Subject {
            handler: <$handler as compute::Compute>::HANDLER,
            generate: compute::generate::<$handler>,
            branches: |_| [&compute::BRANCHES[..], &elementwise::BRANCHES, &[$($branch),*]].concat(),
        }
    };
}

macro_rules! copies {
    ($handler:literal, $op:ident) => {
        Subject {
            handler: $handler,
            generate: |c| copy::generate(c, |c| Style::draw(c, CommOp::$op)),
            branches: |network| Style::branches(CommOp::$op, network),
        }
    };
}

macro_rules! signals {
    ($handler:literal) => {
        Subject {
            handler: $handler,
            generate: |c| copy::generate(c, Style::signals),
            branches: Style::signal_branches,
        }
    };
}

macro_rules! waits {
    ($handler:literal) => {
        Subject {
            handler: $handler,
            generate: |c| copy::generate(c, Style::waits),
            branches: Style::wait_branches,
        }
    };
}

/// All of them. A handler that is registered and not listed here fails the suite.
pub(crate) const SUBJECTS: &[Subject] = &[
    elementwise!(add::Add, "integers"),
    elementwise!(cast::Cast, "a narrower type", "a wider type", "another type of the same size", "any bits"),
    elementwise!(local_copy::LocalCopy, "integers", "another place of its region"),
    elementwise!(scale::Scale,),
    elementwise!(swiglu::Swiglu,),
    Subject {
        handler: <gemm::Gemm as compute::Compute>::HANDLER,
        generate: compute::generate::<gemm::Gemm>,
        branches: |_| [&compute::BRANCHES[..], &gemm::BRANCHES].concat(),
    },
    Subject { handler: "nop", generate: nop::generate, branches: |_| nop::BRANCHES.to_vec() },
    copies!("nvlink.put", Put),
    copies!("nvlink.get", Get),
    copies!("nvlink.put_signal", PutSignal),
    copies!("nvlink.reduce_put", ReducePut),
    signals!("nvlink.signal"),
    waits!("nvlink.wait"),
    copies!("rdma.put", Put),
    copies!("rdma.get", Get),
    copies!("rdma.put_signal", PutSignal),
    copies!("rdma.reduce_put", ReducePut),
    signals!("rdma.signal"),
    waits!("rdma.wait"),
];
