//! NULL (RFC 1813 section 3.3.0): does nothing, so that a client can test whether the server
//! responds.

use weir_xdr::xdr_struct;

xdr_struct! {
    /// Nothing.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Args {}
}

/// Nothing.
pub type Res = ();

#[cfg(test)]
pub(crate) fn result_samples() -> Vec<(usize, usize)> {
    weir_xdr::sample::check(&Args {}, "");
    vec![super::result::<Res>(&(), "", 0)]
}
