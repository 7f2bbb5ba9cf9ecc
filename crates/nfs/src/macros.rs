//! Declarations that the protocol versions share.

/// Declares flags that travel as a `u32`; bits without a name are kept.
macro_rules! wire_flags {
    ($($(#[$meta:meta])* $vis:vis struct $name:ident {
        $($(#[$($fmeta:tt)*])* const $flag:ident = $value:expr;)*
    })*) => {$(
        bitflags::bitflags! {
            $(#[$meta])*
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
            $vis struct $name: u32 { $($(#[$($fmeta)*])* const $flag = $value;)* }
        }

        impl weir_xdr::Encode for $name {
            fn encode(&self, e: &mut weir_xdr::Encoder) {
                e.u32(self.bits());
            }
        }

        impl weir_xdr::Decode for $name {
            fn decode(d: &mut weir_xdr::Decoder) -> weir_xdr::Result<Self> {
                d.u32().map(Self::from_bits_retain)
            }
        }
    )*};
}

pub(crate) use wire_flags;
