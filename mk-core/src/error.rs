//! What can go wrong before a program runs, in words that a tired engineer understands.

use crate::ids::Rank;
use crate::verify::Finding;
use serde::Serialize;
use std::fmt;

/// Why something was refused.
///
/// Every variant says what was given, what is allowed and what to do: see [`Error::explain`].
///
/// Its `Debug` form is for people, too, since that is what a `main` that returns it prints: the message, and what to do.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A value from outside (a file, an option, a variable) is not legal.
    #[error("{message}: given {given}, allowed {allowed}")]
    Input {
        /// What is wrong.
        message: String,
        /// What was given.
        given: String,
        /// What is allowed.
        allowed: String,
        /// What to do.
        hint: String,
    },
    /// A file could not be read or written.
    #[error("{path}: {message}")]
    File {
        /// The file.
        path: String,
        /// What is wrong with it.
        message: String,
        /// What to do.
        hint: String,
    },
    /// No transport can do what a plan needs between two ranks.
    #[error("no transport offers {need} from {from} to {to} (found: {found})")]
    MissingCapability {
        /// What the plan asked for.
        need: String,
        /// The source.
        from: Rank,
        /// The destination.
        to: Rank,
        /// What the registered transports offer for this pair.
        found: String,
    },
    /// A handler rejected its arguments.
    #[error("{handler}: {message}")]
    Args {
        /// The handler.
        handler: String,
        /// What is wrong.
        message: String,
    },
    /// A program was put together in a way that has no meaning.
    #[error("cannot build program: {message}")]
    Build {
        /// What is wrong, with the names of the tasks.
        message: String,
        /// What to do.
        hint: String,
    },
    /// The verifier did not prove a program.
    #[error("program '{program}' was not proved: {finding}")]
    NotProved {
        /// The program's name.
        program: String,
        /// The first thing that was found.
        finding: Box<Finding>,
    },
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hint = self.explain().hint;
        write!(f, "{self}")?;
        if hint.is_empty() { Ok(()) } else { write!(f, "\n  what to do: {hint}") }
    }
}

/// The answer of [`Error::explain`]: the fields of an error object on the command line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// A stable word for the kind of error.
    pub kind: &'static str,
    /// What is wrong.
    pub message: String,
    /// What was given.
    pub given: String,
    /// What is allowed.
    pub allowed: String,
    /// What to do.
    pub hint: String,
}

impl Error {
    /// Short-hand for [`Error::Input`].
    pub fn input(
        message: impl Into<String>,
        given: impl ToString,
        allowed: impl Into<String>,
        hint: impl Into<String>,
    ) -> Error {
        Error::Input {
            message: message.into(),
            given: given.to_string(),
            allowed: allowed.into(),
            hint: hint.into(),
        }
    }

    /// Short-hand for [`Error::Build`].
    pub fn build(message: impl Into<String>, hint: impl Into<String>) -> Error {
        Error::Build { message: message.into(), hint: hint.into() }
    }

    /// The error as given, allowed and hint, for `--json` and for people.
    pub fn explain(&self) -> Explanation {
        let (kind, message, given, allowed, hint) = match self {
            Error::Input { message, given, allowed, hint } => {
                ("input", message.clone(), given.clone(), allowed.clone(), hint.clone())
            }
            Error::File { path, message, hint } => {
                ("file", message.clone(), path.clone(), String::new(), hint.clone())
            }
            Error::MissingCapability { need, from, to, found } => (
                "missing-capability",
                self.to_string(),
                format!("{from} to {to}: {found}"),
                need.clone(),
                "register a transport that serves this pair, or choose another topology".into(),
            ),
            Error::Args { handler, message } => {
                ("arguments", message.clone(), handler.clone(), String::new(), String::new())
            }
            Error::Build { message, hint } => {
                ("build", message.clone(), String::new(), String::new(), hint.clone())
            }
            Error::NotProved { program, finding } => (
                "not-proved",
                finding.to_string(),
                program.clone(),
                "a program that the verifier proves".into(),
                finding.hint().into(),
            ),
        };
        Explanation { kind, message, given, allowed, hint }
    }
}

/// What a handler's [`spec`](crate::Handler::spec) says of arguments that it does not accept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ArgError(pub String);

impl ArgError {
    /// An error with this text.
    pub fn new(message: impl Into<String>) -> ArgError {
        ArgError(message.into())
    }
}
