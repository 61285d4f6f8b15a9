//! Timelines: what a run did when, read from a trace and shown.
//!
//! ```text
//! read -> Trace -> summary            the exposed communication, in numbers
//!              \-> normal             the trace again, sorted
//!              \-> shown -> view      which ranks and lanes are drawn, in which colours
//!                            \-> svg  a picture
//!                            \-> html an interactive page
//! ```

mod cells;
mod families;
mod html;
mod normal;
mod read;
mod shown;
mod spans;
mod summary;
mod svg;
mod text;
mod trace;
mod view;

pub(crate) use html::{BUDGET as HTML_BUDGET, html};
pub(crate) use normal::normal;
pub(crate) use read::{MAX_BYTES, MAX_FILE_BYTES, read};
pub(crate) use shown::{RankList, Shown};
pub(crate) use summary::Summary;
pub(crate) use svg::{BUDGET as SVG_BUDGET, svg};
pub(crate) use text::{percent, us};
pub(crate) use trace::Trace;
pub(crate) use view::View;
