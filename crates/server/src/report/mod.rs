//! Reports the counters as text, as values and over HTTP.
//!
//! - `text`: OpenMetrics, and a summary for people. `snapshot`: values. `endpoint`: `GET /metrics`.

pub use crate::transport::ConnectionCounts;

mod endpoint;
mod snapshot;
mod text;

pub use endpoint::serve;
pub use snapshot::{ExportCounts, LimitCounts, OperationCounts, bounds_us};
pub(crate) use text::LimitsReport;
pub use text::Report;
