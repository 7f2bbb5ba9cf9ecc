//! The table of procedures: one row each, from which all code that covers every procedure is
//! generated.
//!
//! A row is: a description, the variant of [`Procedure`], its number, its file in
//! [`op`](super::op), whether it is idempotent, and the most bytes of results, without file data,
//! names and entries, whose lengths the call determines.

use crate::macros::numbered;
use weir_xdr::{Decode, Encode};

/// Hands the table to the macro `$then`, rows as they stand here (the server's dispatch is made
/// with it).
#[macro_export]
macro_rules! v3_procedures {
    ($then:ident) => {
        $then! {
            /// Does nothing.
            Null = 0, null, repeatable, 0;
            /// Attributes of a file.
            Getattr = 1, getattr, repeatable, 88;
            /// Sets attributes.
            Setattr = 2, setattr, once, 120;
            /// Finds a name in a directory.
            Lookup = 3, lookup, repeatable, 248;
            /// Which of some rights the caller has.
            Access = 4, access, repeatable, 96;
            /// The target of a symbolic link.
            Readlink = 5, readlink, repeatable, 96;
            /// Reads data.
            Read = 6, read, repeatable, 104;
            /// Writes data.
            Write = 7, write, repeatable, 136;
            /// Makes a regular file.
            Create = 8, create, once, 280;
            /// Makes a directory.
            Mkdir = 9, mkdir, once, 280;
            /// Makes a symbolic link.
            Symlink = 10, symlink, once, 280;
            /// Makes a device, pipe or socket.
            Mknod = 11, mknod, once, 280;
            /// Removes a name of anything but a directory.
            Remove = 12, remove, once, 120;
            /// Removes an empty directory.
            Rmdir = 13, rmdir, once, 120;
            /// Renames.
            Rename = 14, rename, once, 236;
            /// Makes another name for a file.
            Link = 15, link, once, 208;
            /// Names in a directory.
            Readdir = 16, readdir, repeatable, 108;
            /// Names in a directory, with handles and attributes.
            Readdirplus = 17, readdirplus, repeatable, 108;
            /// Space and file counts.
            Fsstat = 18, fsstat, repeatable, 144;
            /// Sizes and abilities of the server.
            Fsinfo = 19, fsinfo, repeatable, 140;
            /// Limits of a file system.
            Pathconf = 20, pathconf, repeatable, 116;
            /// Makes written data durable.
            Commit = 21, commit, repeatable, 128;
        }
    };
}

/// A procedure's arguments, tied to its number and results, as a client needs them for a call.
pub trait Call: Encode + Decode {
    /// Which procedure.
    const PROCEDURE: Procedure;
    /// What it returns.
    type Res: Encode + Decode;
}

macro_rules! declare {
    ($($(#[$meta:meta])* $name:ident = $number:literal, $op:ident, $kind:ident, $max:literal;)*) => {
        numbered! {
            /// A procedure.
            pub enum Procedure { $($(#[$meta])* $name = $number, $op;)* }
        }

        impl Procedure {
            /// Whether doing it twice is as good as once, so that a repeated call needs no
            /// remembered reply.
            pub const fn is_idempotent(self) -> bool {
                match self { $(Self::$name => declare!(@idempotent $kind),)* }
            }

            /// Most bytes of results, without data, names and entries, whose lengths the call
            /// determines.
            pub const fn max_result_bytes(self) -> usize {
                match self { $(Self::$name => $max,)* }
            }
        }

        $(impl Call for super::op::$op::Args {
            const PROCEDURE: Procedure = Procedure::$name;
            type Res = super::op::$op::Res;
        })*

        #[cfg(test)]
        mod tests {
            use super::*;

            $(#[test]
            fn $op() {
                for (variable, len) in crate::v3::op::$op::result_samples() {
                    let max = Procedure::$name.max_result_bytes() + variable;
                    assert!(len <= max, "{len} bytes of results, the table says {max}");
                }
                assert_eq!(Procedure::from_number($number), Some(Procedure::$name));
            })*

            #[test]
            fn procedures_are_in_order() {
                for (number, procedure) in (0..).zip(Procedure::ALL) {
                    assert_eq!(*procedure as u32, number);
                }
                assert_eq!(Procedure::from_number(22), None);
            }
        }
    };
    (@idempotent repeatable) => { true };
    (@idempotent once) => { false };
}

v3_procedures!(declare);
