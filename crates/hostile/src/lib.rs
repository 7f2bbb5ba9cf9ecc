//! Hostile clients of a live server, and a hostile server for live clients: an input's bytes become a
//! sequence of calls, most of them valid, or changes of replies. The other side must keep what it
//! promises.
//!
//! - [`server`]: one input against a server; [`client`]: against a client.
//! - `calls`: the clients' calls. `templates`: the arguments of every call, as fields. `known`: what a
//!   client knows, and the fields filled in. `connection`, `replies`: sends calls; decodes what comes
//!   back. `source`: an input's bytes as choices.
//! - The same inputs come from a seed (`weir-hostile`, `tests/`), or from libFuzzer (`fuzz/`).

mod calls;
pub mod client;
mod connection;
mod known;
mod replies;
pub mod seeds;
pub mod server;
mod source;
mod templates;

/// Whether the inputs contain an operation of NFSv4: all but those that the server does not serve.
pub fn has_arguments(code: weir_nfs::v4::OpCode) -> bool {
    templates::V4.iter().any(|(of, _)| *of == code)
}
