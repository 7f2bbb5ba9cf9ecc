//! The procedures, one file each: `Args`, `Res`, and at the bottom hand-checked samples of both.

pub mod access;
pub mod commit;
pub mod create;
pub mod fsinfo;
pub mod fsstat;
pub mod getattr;
pub mod link;
pub mod lookup;
pub mod mkdir;
pub mod mknod;
pub mod null;
pub mod pathconf;
pub mod read;
pub mod readdir;
pub mod readdirplus;
pub mod readlink;
pub mod remove;
pub mod rename;
pub mod rmdir;
pub mod setattr;
pub mod symlink;
pub mod write;

/// Checks a sample result, its length, and the part of that which the call determines.
#[cfg(test)]
pub(crate) fn result<T>(res: &T, wire: &str, variable_bytes: usize) -> (usize, usize)
where
    T: weir_xdr::Encode + weir_xdr::Decode + PartialEq + std::fmt::Debug,
{
    weir_xdr::sample::check(res, wire);
    (variable_bytes, weir_xdr::sample::hex(wire).len())
}
