//! Jobs side by side, none of which may keep the others' results from being told.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Does something, and says what was wrong with it.
pub(super) type Job = Box<dyn FnOnce() -> Result<(), String> + Send>;

/// What became of a job; how long it took, in seconds.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Ended {
    Right(f64),
    /// And why. One that does not end within the limit is wrong, too.
    Wrong(f64, String),
    /// One before it did not end.
    NotBegun,
}

enum Told {
    Begun(usize, Instant),
    Ended(usize, Result<(), String>),
}

/// Runs them, so many at a time, and tells how many have ended. When one does not end within `limit`, no other is begun.
///
/// A thread that does not end is left behind, for there is no way to stop it.
pub(super) fn all(
    jobs: Vec<Job>,
    workers: usize,
    limit: Duration,
    mut progress: impl FnMut(usize),
) -> Vec<Ended> {
    let mut watch = Watch { began: vec![None; jobs.len()], ended: vec![Ended::NotBegun; jobs.len()], limit };
    let queue = Arc::new(Mutex::new(jobs.into_iter().enumerate()));
    let (to, from) = mpsc::channel();
    for _ in 0..workers.max(1) {
        let (queue, to) = (queue.clone(), to.clone());
        thread::spawn(move || work(&queue, &to));
    }
    drop(to);
    let mut stuck = false;
    while !stuck || watch.waits() {
        match from.recv_timeout(watch.patience()) {
            Ok(Told::Begun(i, at)) => watch.began[i] = Some(at),
            Ok(Told::Ended(i, result)) => watch.end(i, result),
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) if watch.give_up() => {
                stuck = true;
                queue.lock().unwrap_or_else(PoisonError::into_inner).by_ref().for_each(drop);
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        progress(watch.ended.iter().filter(|e| **e != Ended::NotBegun).count());
    }
    watch.ended
}

fn work(queue: &Mutex<impl Iterator<Item = (usize, Job)>>, to: &Sender<Told>) {
    loop {
        let Some((i, job)) = queue.lock().unwrap_or_else(PoisonError::into_inner).next() else { return };
        // Nobody listens any more when the command has given its answer.
        let _ = to.send(Told::Begun(i, Instant::now()));
        let result = catch_unwind(AssertUnwindSafe(job)).unwrap_or_else(|panic| Err(message(&*panic)));
        let _ = to.send(Told::Ended(i, result));
    }
}

/// What a panic says.
fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    format!("a panic: {}", text.unwrap_or("of no words"))
}

/// What is known of all jobs.
struct Watch {
    /// Those that are under way.
    began: Vec<Option<Instant>>,
    ended: Vec<Ended>,
    limit: Duration,
}

impl Watch {
    fn waits(&self) -> bool {
        self.began.iter().any(Option::is_some)
    }

    /// Until a job may be late.
    fn patience(&self) -> Duration {
        let first = self.began.iter().flatten().min();
        first.map_or(self.limit, |began| self.limit.saturating_sub(began.elapsed()))
    }

    fn end(&mut self, i: usize, result: Result<(), String>) {
        let Some(began) = self.began[i].take() else { return };
        let seconds = began.elapsed().as_secs_f64();
        self.ended[i] = match result {
            Ok(()) => Ended::Right(seconds),
            Err(why) => Ended::Wrong(seconds, why),
        };
    }

    /// Waits no more for what is late. Whether anything is.
    fn give_up(&mut self) -> bool {
        let (limit, mut any) = (self.limit, false);
        for (began, ended) in self.began.iter_mut().zip(&mut self.ended) {
            if began.take_if(|began| began.elapsed() >= limit).is_some() {
                let seconds = limit.as_secs_f64();
                *ended = Ended::Wrong(seconds, format!("it did not end within {seconds} s"));
                any = true;
            }
        }
        any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(f: impl FnOnce() -> Result<(), String> + Send + 'static) -> Job {
        Box::new(f)
    }

    fn pause(ms: u64) -> Job {
        job(move || {
            thread::sleep(Duration::from_millis(ms));
            Ok(())
        })
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn every_job_has_its_own_result_a_panic_among_them() {
        let jobs = vec![
            job(|| Ok(())),
            job(|| Err("seed 3".into())),
            job(|| panic!("an {}", "assertion")),
            job(|| Ok(())),
        ];
        let mut told = Vec::new();
        let ended = all(jobs, 2, LONG, |done| told.push(done));
        assert!(matches!(ended[0], Ended::Right(_)) && matches!(ended[3], Ended::Right(_)), "{ended:?}");
        assert!(matches!(&ended[1], Ended::Wrong(_, why) if why == "seed 3"), "{ended:?}");
        assert!(matches!(&ended[2], Ended::Wrong(_, why) if why == "a panic: an assertion"), "{ended:?}");
        assert!(told.is_sorted() && told.last() == Some(&4), "{told:?}");
    }

    #[test]
    fn a_job_that_does_not_end_keeps_later_ones_from_beginning_and_others_from_nothing() {
        let jobs = vec![job(|| Ok(())), pause(60_000), job(|| panic!("it is begun")), job(|| Ok(()))];
        let start = Instant::now();
        let ended = all(jobs, 1, Duration::from_millis(200), |_| ());
        assert!(start.elapsed() < LONG / 2);
        assert!(matches!(ended[0], Ended::Right(_)), "{ended:?}");
        assert_eq!(ended[1], Ended::Wrong(0.2, "it did not end within 0.2 s".into()));
        assert_eq!(ended[2..], [Ended::NotBegun, Ended::NotBegun]);
    }

    #[test]
    fn jobs_that_are_under_way_may_end_when_another_is_late() {
        let ended = all(vec![pause(60_000), pause(150), pause(200)], 2, Duration::from_millis(300), |_| ());
        assert!(matches!(ended[0], Ended::Wrong(..)) && matches!(ended[2], Ended::Right(_)), "{ended:?}");
    }
}
