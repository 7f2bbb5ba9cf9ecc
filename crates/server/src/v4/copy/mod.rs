//! Copies within the server (RFC 7862 section 4): piece by piece, and in the background after the reply.

pub(crate) mod background;
pub(crate) mod piecewise;
