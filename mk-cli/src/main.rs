//! The mk command.
fn main() {}
