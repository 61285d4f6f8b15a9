//! Program files.
