//! Transport over peer-mapped memory inside a node.
