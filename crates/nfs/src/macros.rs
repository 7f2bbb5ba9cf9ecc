//! Declarations shared by the protocol versions.

/// Declares flags that are sent as a `u32`; bits without a name are kept.
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

/// Declares the requests of a protocol: an enum of numbers, with names.
macro_rules! numbered {
    ($(#[$emeta:meta])* pub enum $enum:ident {
        $($(#[$meta:meta])* $name:ident = $number:literal, $label:ident;)*
    }) => {
        weir_xdr::xdr_enum! {
            $(#[$emeta])*
            pub enum $enum { $($(#[$meta])* $name = $number,)* }
        }

        impl $enum {
            /// Every one, in the order of the table.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The one of that number.
            pub const fn from_number(number: u32) -> Option<Self> {
                match number { $($number => Some(Self::$name),)* _ => None }
            }

            /// The name, in lower case.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($label),)* }
            }
        }
    };
}

/// The sample messages of one operation: values and their wire forms, in hexadecimal; a result that
/// holds data, names or lists says how many bytes of it those are. The operation's row in the table
/// runs them as a test and holds the results against the row's bound, so an operation without
/// samples does not build.
macro_rules! samples {
    (
        args: [$($args:expr => $args_wire:expr),* $(,)?],
        results: [$($res:expr => $res_wire:expr $(, variable $variable:expr)?);+ $(;)?] $(,)?
    ) => {
        #[cfg(test)]
        pub(crate) fn result_samples() -> Vec<(usize, usize)> {
            $(weir_xdr::sample::check::<Args>(&$args, $args_wire);)*
            vec![$({
                weir_xdr::sample::check::<Res>(&$res, $res_wire);
                (0 $(+ $variable)?, weir_xdr::sample::hex($res_wire).len())
            }),+]
        }
    };
}

pub(crate) use {numbered, samples, wire_flags};
