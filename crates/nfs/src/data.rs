//! File data in a message.

use std::io::IoSlice;
use std::sync::Arc;
use weir_xdr::{Bytes, Decode, Decoder, Encode, Encoder, Payload, Result};

/// Data up to this length is copied into the message, which is cheaper than gathering it.
const INLINE_BYTES: usize = 256;

/// Data that is read or written: an opaque that is not copied.
#[derive(Clone)]
pub enum Data {
    /// In one piece; what decoding yields.
    Bytes(Bytes),
    /// Stored elsewhere, in cached pages for instance.
    Shared(Arc<dyn Payload>),
}

impl Data {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Shared(payload) => payload.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The data as one slice; copies [`Shared`](Self::Shared) data.
    pub fn to_bytes(&self) -> Bytes {
        match self {
            Self::Bytes(bytes) => bytes.clone(),
            Self::Shared(payload) => {
                let mut slices: Vec<IoSlice<'_>> = Vec::new();
                payload.slices(0, &mut slices);
                slices.iter().flat_map(|slice| slice.iter().copied()).collect()
            }
        }
    }
}

impl Default for Data {
    fn default() -> Self {
        Self::Bytes(Bytes::new())
    }
}

impl From<Bytes> for Data {
    fn from(bytes: Bytes) -> Self {
        Self::Bytes(bytes)
    }
}

impl From<&'static str> for Data {
    fn from(text: &'static str) -> Self {
        Self::Bytes(Bytes::from_static(text.as_bytes()))
    }
}

impl PartialEq for Data {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.to_bytes() == other.to_bytes()
    }
}

impl Eq for Data {}

impl std::fmt::Debug for Data {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Data({} bytes)", self.len())
    }
}

impl Encode for Data {
    fn encode(&self, e: &mut Encoder) {
        match self {
            Self::Bytes(bytes) if bytes.len() <= INLINE_BYTES => e.opaque(bytes),
            Self::Bytes(bytes) => e.payload(Arc::new(bytes.clone())),
            Self::Shared(payload) => e.payload(Arc::clone(payload)),
        }
    }
}

impl Decode for Data {
    fn decode(d: &mut Decoder) -> Result<Self> {
        d.opaque(usize::MAX).map(Self::Bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_xdr::sample;

    #[test]
    fn every_kind_has_the_same_wire_form() {
        for len in [0, 1, INLINE_BYTES, INLINE_BYTES + 1, 5000] {
            let bytes: Bytes = (0..len).map(|i| i as u8).collect();
            let (held, shared) = (Data::from(bytes.clone()), Data::Shared(Arc::new(bytes.clone())));
            assert_eq!(held, shared);
            assert_eq!(sample::wire(&held), sample::wire(&shared));
            let mut d = Decoder::new(sample::wire(&shared));
            assert_eq!(d.get::<Data>().map(|data| data.to_bytes()), Ok(bytes));
        }
    }
}
