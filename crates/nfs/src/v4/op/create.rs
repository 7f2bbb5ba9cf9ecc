//! CREATE (RFC 8881 section 18.4): creates a file that is not a regular one.

use crate::macros::samples;
use crate::v4::attr::Fattr;
use crate::v4::bitmap::Bitmap;
use crate::v4::error::Error;
use crate::v4::types::{ChangeInfo, LinkText, Name, SpecData};
use weir_xdr::{xdr_struct, xdr_union};

xdr_union! {
    /// What to make.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum Kind {
        /// A regular file: never created by this operation, but clients may ask.
        Regular = 1,
        /// A directory.
        Directory = 2,
        /// A block device.
        Block(SpecData) = 3,
        /// A character device.
        Char(SpecData) = 4,
        /// A symbolic link with this target.
        Symlink(LinkText) = 5,
        /// A socket.
        Socket = 6,
        /// A named pipe.
        Fifo = 7,
        /// A directory of named attributes.
        AttrDir = 8,
        /// A named attribute.
        NamedAttr = 9,
    }
}

xdr_struct! {
    /// What to make in the current directory.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Args {
        /// What.
        pub kind: Kind,
        /// Its name.
        pub name: Name,
        /// Its attributes.
        pub attrs: Fattr,
    }

    /// The result; the new file becomes the current one.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Created {
        /// The directory's change.
        pub change: ChangeInfo,
        /// Attributes that were set.
        pub set: Bitmap,
    }
}

/// What was made.
pub type Res = Result<Created, Error>;

samples! {
    args: [
        Args { kind: Kind::Symlink("to".into()), name: "ln".into(), attrs: Fattr::default() } =>
            "00000005 00000002 746f0000 00000002 6c6e0000 00000000 00000000",
        Args { kind: Kind::Directory, name: "d".into(), attrs: Fattr::default() } =>
            "00000002 00000001 64000000 00000000 00000000",
    ],
    results: [
        Ok(Created {
            change: ChangeInfo { atomic: false, before: 1, after: 2 },
            set: Bitmap::of(&[33]),
        }) => "00000000 00000000 00000000 00000001 00000000 00000002 00000002 00000000 00000002";
        Err(Error::Exist) => "00000011";
    ],
}
