//! Copies within the server (RFC 7862 section 4): the copying itself (`piecewise`), and copies that
//! continue after the reply (`background`).

pub(crate) mod background;
pub(crate) mod piecewise;
