//! Codecs generated from declarations, one line per field.

/// Declares a struct whose fields are encoded in order.
///
/// ```
/// weir_xdr::xdr_struct! {
///     /// A time.
///     #[derive(Clone, Copy, Debug, PartialEq, Eq)]
///     pub struct NfsTime { pub seconds: i64, pub nseconds: u32 }
/// }
/// ```
#[macro_export]
macro_rules! xdr_struct {
    ($($(#[$meta:meta])* $vis:vis struct $name:ident {
        $($(#[$fmeta:meta])* $fvis:vis $field:ident: $ty:ty),* $(,)?
    })*) => {$(
        $(#[$meta])*
        $vis struct $name { $($(#[$fmeta])* $fvis $field: $ty,)* }

        impl $crate::Encode for $name {
            fn encode(&self, e: &mut $crate::Encoder) {
                let _ = &e;
                $(e.put(&self.$field);)*
            }
        }

        impl $crate::Decode for $name {
            const MIN_BYTES: usize = 0 $(+ <$ty as $crate::Decode>::MIN_BYTES)*;

            fn decode(d: &mut $crate::Decoder) -> $crate::Result<Self> {
                let _ = &d;
                Ok(Self { $($field: d.get()?,)* })
            }
        }
    )*};
}

/// Declares an enumeration; a number without a name is [`Error::BadValue`](crate::Error::BadValue).
#[macro_export]
macro_rules! xdr_enum {
    ($($(#[$meta:meta])* $vis:vis enum $name:ident {
        $($(#[$vmeta:meta])* $variant:ident = $value:expr),* $(,)?
    })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u32)]
        $vis enum $name { $($(#[$vmeta])* $variant = $value,)* }

        impl $crate::Encode for $name {
            fn encode(&self, e: &mut $crate::Encoder) {
                e.u32(*self as u32);
            }
        }

        impl $crate::Decode for $name {
            fn decode(d: &mut $crate::Decoder) -> $crate::Result<Self> {
                let value = d.u32()?;
                $(if value == const { $value as u32 } { return Ok(Self::$variant); })*
                Err($crate::Error::BadValue)
            }
        }
    )*};
}

/// Declares a union: an enum whose arms are selected by a `u32` discriminant.
///
/// ```
/// weir_xdr::xdr_union! {
///     /// A change of ownership, or none.
///     #[derive(Clone, Debug, PartialEq, Eq)]
///     pub enum SetUid { Keep = 0, Set(u32) = 1 }
/// }
/// ```
#[macro_export]
macro_rules! xdr_union {
    ($($(#[$meta:meta])* $vis:vis enum $name:ident {
        $($(#[$vmeta:meta])* $variant:ident $(($ty:ty))? = $tag:expr),* $(,)?
    })*) => {$(
        $(#[$meta])*
        $vis enum $name { $($(#[$vmeta])* $variant $(($ty))?,)* }

        impl $crate::Encode for $name {
            fn encode(&self, e: &mut $crate::Encoder) {
                $($crate::xdr_union!(@encode self e $name $tag, $variant $(($ty))?);)*
            }
        }

        impl $crate::Decode for $name {
            fn decode(d: &mut $crate::Decoder) -> $crate::Result<Self> {
                let tag = d.u32()?;
                $(if tag == const { $tag as u32 } {
                    return Ok($crate::xdr_union!(@decode d $name $variant $(($ty))?));
                })*
                Err($crate::Error::BadValue)
            }
        }
    )*};
    (@encode $self:ident $e:ident $name:ident $tag:expr, $variant:ident ($ty:ty)) => {
        if let $name::$variant(value) = $self {
            $e.u32($tag as u32);
            $e.put(value);
        }
    };
    (@encode $self:ident $e:ident $name:ident $tag:expr, $variant:ident) => {
        if let $name::$variant = $self {
            $e.u32($tag as u32);
        }
    };
    (@decode $d:ident $name:ident $variant:ident ($ty:ty)) => {
        $name::$variant($d.get::<$ty>()?)
    };
    (@decode $d:ident $name:ident $variant:ident) => {
        $name::$variant
    };
}
