//! What the server did, as text and over HTTP.
//!
//! - `text`: in OpenMetrics, and for people. `endpoint`: `GET /metrics`.

mod endpoint;
mod text;

pub use endpoint::serve;
pub use text::Report;
