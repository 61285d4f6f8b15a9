//! Mistakes that are planted in a model, to see that its test finds them.

use std::fmt::Debug;

/// How a test fails, if it does. On a thread of its own: a task of the model that has not done with its panic when its test ends
/// would count against every test that follows on the thread.
pub(crate) fn failure(test: impl FnOnce() + Send + 'static) -> Option<String> {
    let panic = std::thread::spawn(test).join().err()?;
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    Some(text.unwrap_or_default().to_owned())
}

/// Each of them is found.
pub(crate) fn are_found<B: Copy + Debug>(bugs: &[B], how: impl Fn(B) -> Option<String>) {
    let loud = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let found: Vec<_> = bugs.iter().map(|&bug| (bug, how(bug))).collect();
    std::panic::set_hook(loud);
    let missed: Vec<_> = found.iter().filter(|(_, how)| how.is_none()).map(|(bug, _)| bug).collect();
    found.iter().for_each(|(bug, how)| println!("{bug:?}: {}", how.as_deref().unwrap_or("not found")));
    assert!(missed.is_empty(), "not found: {missed:?}");
}
