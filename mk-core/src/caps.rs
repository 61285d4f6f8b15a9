//! What a transport can do between two ranks.

use bitflags::bitflags;
use std::fmt;

bitflags! {
    /// Capabilities of a transport for one ordered pair of ranks.
    ///
    /// ```
    /// use mk_core::Caps;
    /// let need = Caps::PUT | Caps::SIGNAL;
    /// assert!((need | Caps::ORDERED).contains(need));
    /// assert_eq!(need.to_string(), "PUT | SIGNAL");
    /// ```
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Caps: u32 {
        /// Write remote memory.
        const PUT = 1;
        /// Read remote memory.
        const GET = 1 << 1;
        /// Raise a remote signal word after the data that it follows.
        const SIGNAL = 1 << 2;
        /// GPU atomics on remote words: a frame can post `Add` signals there.
        const ATOMIC_ADD = 1 << 3;
        /// Add to remote memory.
        const REDUCE = 1 << 4;
        /// Data and signals arrive in the order in which they were sent.
        const ORDERED = 1 << 5;
        /// One store reaches many ranks. Off unless asked for.
        const MULTICAST = 1 << 6;
        /// The NIC reads and writes GPU memory itself.
        const GPU_DIRECT = 1 << 7;
    }
}

impl fmt::Display for Caps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() { f.write_str("nothing") } else { bitflags::parser::to_writer(self, f) }
    }
}

impl Caps {
    /// What all ranks can do: the AND of what each of them offers. No offers, no capabilities.
    ///
    /// ```
    /// use mk_core::Caps;
    /// let agreed = Caps::agree([Caps::PUT | Caps::GPU_DIRECT, Caps::PUT]);
    /// assert_eq!(agreed, Caps::PUT);
    /// ```
    pub fn agree(offers: impl IntoIterator<Item = Caps>) -> Caps {
        offers.into_iter().reduce(|a, b| a & b).unwrap_or(Caps::empty())
    }
}
