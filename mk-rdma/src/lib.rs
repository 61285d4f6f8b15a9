//! Transport over a network, ordered or not.
