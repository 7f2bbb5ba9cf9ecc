//! Reports the counters as text and over HTTP.
//!
//! - `text`: OpenMetrics, and a summary for people. `endpoint`: `GET /metrics`.

mod endpoint;
mod text;

pub use endpoint::serve;
pub(crate) use text::LimitsReport;
pub use text::Report;
