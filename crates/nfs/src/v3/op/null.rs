//! NULL (RFC 1813 section 3.3.0): answers, so that a client knows that the server is there.

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
