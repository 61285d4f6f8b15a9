//! Signal words of all ranks, and who waits for them.

use crate::unit::Role;

const NONE: u32 = u32::MAX;

/// Who waits for a word.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiter {
    pub(crate) target: u64,
    pub(crate) unit: u32,
    pub(crate) slot: u8,
    pub(crate) role: Role,
    next: u32,
}

/// Words and waiters.
#[derive(Default)]
pub(crate) struct Words {
    pub(crate) values: Vec<u64>,
    heads: Vec<u32>,
    pool: Vec<Waiter>,
    free: Vec<u32>,
}

impl Words {
    /// Adds words that stand at 0; returns the place of the first.
    pub(crate) fn grow(&mut self, words: usize) -> usize {
        let first = self.values.len();
        self.values.resize(first + words, 0);
        self.heads.resize(first + words, NONE);
        first
    }

    /// Nobody waits any more.
    pub(crate) fn forget_waiters(&mut self) {
        self.heads.fill(NONE);
        self.pool.clear();
        self.free.clear();
    }

    /// Remembers that a role waits until the word stands at `target`.
    pub(crate) fn wait(&mut self, word: usize, target: u64, unit: u32, slot: u8, role: Role) {
        let waiter = Waiter { target, unit, slot, role, next: self.heads[word] };
        let at = match self.free.pop() {
            Some(at) => {
                self.pool[at as usize] = waiter;
                at
            }
            None => {
                self.pool.push(waiter);
                (self.pool.len() - 1) as u32
            }
        };
        self.heads[word] = at;
    }

    /// Sets a word, and moves those that waited for it to `woken`, first come first.
    #[inline]
    pub(crate) fn set(&mut self, word: usize, value: u64, woken: &mut Vec<Waiter>) {
        self.values[word] = value;
        let mut at = self.heads[word];
        if at == NONE {
            return;
        }
        let from = woken.len();
        let (mut kept, mut last) = (NONE, NONE);
        while at != NONE {
            let waiter = self.pool[at as usize];
            if waiter.target <= value {
                woken.push(waiter);
                self.free.push(at);
            } else {
                match last {
                    NONE => kept = at,
                    l => self.pool[l as usize].next = at,
                }
                last = at;
            }
            at = waiter.next;
        }
        if last != NONE {
            self.pool[last as usize].next = NONE;
        }
        self.heads[word] = kept;
        woken[from..].reverse();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_whose_target_is_reached_wake_in_order() {
        let mut words = Words::default();
        let word = words.grow(3) + 1;
        for (unit, target) in [(0, 2), (1, 1), (2, 3), (3, 2)] {
            words.wait(word, target, unit, 0, Role::Load);
        }
        let take = |words: &mut Words, value| {
            let mut woken = Vec::new();
            words.set(word, value, &mut woken);
            woken.iter().map(|w| w.unit).collect::<Vec<_>>()
        };
        assert_eq!(take(&mut words, 1), [1]);
        words.wait(word, 2, 4, 0, Role::Store);
        assert_eq!(take(&mut words, 2), [0, 3, 4]);
        assert_eq!(take(&mut words, 2), [0u32; 0]);
        assert_eq!(take(&mut words, 9), [2]);
    }
}
