//! The operations, in small families. Each function is named as its row of the operation table and
//! returns a value, which the wire layer encodes.

mod attr;
mod copy;
mod data;
mod handle;
mod lock;
mod name;
mod open;
mod opened;
mod read_plus;
mod readdir;
mod session;
mod space;
mod v40;
mod write_same;
mod xattr;

use crate::v4::context::Context;
use attr::*;
use copy::*;
use data::*;
use handle::*;
use lock::*;
use name::*;
use open::*;
use read_plus::*;
use readdir::*;
use session::*;
use space::*;
use v40::*;
use weir_nfs::v4::{Op, OpRes};
use write_same::*;
use xattr::*;

macro_rules! dispatch {
    ($($(#[$meta:meta])* $name:ident = $number:literal, $op:ident, $minors:expr, $place:ident,
        $handles:ident, $stateid:ident, $kind:ident, $bound:ident $bytes:literal;)*) => {
        /// Executes an operation that has passed the checks of the compound.
        pub(crate) async fn dispatch(cx: &mut Context, op: Op) -> OpRes {
            match op {
                $(Op::$name(args) => OpRes::$name($op(cx, args).await),)*
                Op::Refused(code) => OpRes::Failed(code, weir_nfs::v4::Error::NotSupp),
            }
        }
    };
}

weir_nfs::v4_operations!(dispatch);
