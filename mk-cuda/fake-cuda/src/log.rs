//! A line for each call.

use std::fs::{File, OpenOptions};
use std::io::Write as _;

/// The log, if one is wanted.
pub(crate) struct Log {
    file: Option<File>,
}

impl Log {
    pub(crate) fn from_env() -> Log {
        let path = std::env::var_os("FAKE_CUDA_LOG");
        let open = |path| OpenOptions::new().create(true).append(true).open(path);
        let file = path
            .map(|path| open(path).unwrap_or_else(|e| crate::state::give_up(&format!("FAKE_CUDA_LOG: {e}"))));
        Log { file }
    }

    pub(crate) fn line(&mut self, text: &str) {
        if let Some(file) = &mut self.file {
            // One write: lines of several processes do not mix.
            let written = file.write_all(format!("{text}\n").as_bytes());
            written.unwrap_or_else(|e| crate::state::give_up(&format!("FAKE_CUDA_LOG: {e}")));
        }
    }
}
