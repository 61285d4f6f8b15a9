//! What TOML files have in common.

use crate::Error;
use serde::de::DeserializeOwned;

/// Parses a file of a known kind; the error names the line and shows it, so that the key is seen.
pub(crate) fn from_toml<T: DeserializeOwned>(what: &str, text: &str, keys: &str) -> Result<T, Error> {
    toml::from_str(text).map_err(|e| {
        let at = e.span().map_or(0, |s| s.start.min(text.len()));
        let line = text.as_bytes()[..at].iter().filter(|&&b| b == b'\n').count();
        let shown: String = text.lines().nth(line).unwrap_or("").trim().chars().take(120).collect();
        let message: String = e.message().trim().replace('\n', ", ").chars().take(300).collect();
        Error::input(
            format!("{what}, line {}: {message}", line + 1),
            format!("`{shown}`"),
            keys,
            "correct the line, or leave the key out if it is optional",
        )
    })
}
