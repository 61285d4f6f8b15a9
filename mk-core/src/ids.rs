//! Small index types, so that a rank is never mistaken for a lane.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $word:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl $name {
            /// The index as `usize`, to index a slice with.
            #[inline]
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($word, " {}"), self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

id!(
    /// One GPU's place in the world, `0..world.size()`.
    Rank(u16),
    "rank"
);
id!(
    /// One server.
    Node(u16),
    "node"
);
id!(
    /// One resident thread block (one SM) of a rank.
    Lane(u16),
    "lane"
);
id!(
    /// Index into [`Program::regions`](crate::Program::regions).
    RegionId(u16),
    "region"
);
id!(
    /// Index of a handler in [`Program::handlers`](crate::Program::handlers); the registry gives it an opcode at load.
    OpId(u16),
    "op"
);
id!(
    /// Index of a task in [`Program::tasks`](crate::Program::tasks).
    TaskId(u32),
    "task"
);
