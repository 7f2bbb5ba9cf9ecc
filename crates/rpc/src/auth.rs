//! Credentials and verifiers (RFC 5531 sections 8.2, 9 and 14, appendix A).

use weir_xdr::{
    Decode, Decoder, Encode, Encoder, List, Opaque, Result, sample, xdr_enum, xdr_struct,
};

/// Most bytes in the body of a credential or verifier (RFC 5531 section 8.2).
pub const MAX_AUTH_BYTES: usize = 400;

/// How the caller of an RPC authenticates, by the number on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AuthFlavor(pub u32);

impl AuthFlavor {
    /// No identity.
    pub const NONE: Self = Self(0);
    /// User and group numbers, trusted without proof.
    pub const SYS: Self = Self(1);
    /// RPCSEC_GSS (RFC 2203).
    pub const GSS: Self = Self(6);
    /// Asks whether the server supports TLS (RFC 9289).
    pub const TLS: Self = Self(7);
}

impl Encode for AuthFlavor {
    fn encode(&self, e: &mut Encoder) {
        e.u32(self.0);
    }
}

impl Decode for AuthFlavor {
    fn decode(d: &mut Decoder) -> Result<Self> {
        d.u32().map(Self)
    }
}

xdr_struct! {
    /// A credential or verifier: a flavor, and bytes that the flavor defines.
    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    pub struct OpaqueAuth {
        /// Defines the body.
        pub flavor: AuthFlavor,
        /// The flavor's own bytes.
        pub body: Opaque<MAX_AUTH_BYTES>,
    }

    /// The body of an AUTH_SYS credential (RFC 5531 appendix A).
    #[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
    pub struct AuthSys {
        /// An arbitrary number without a meaning.
        pub stamp: u32,
        /// Name of the caller's machine.
        pub machine_name: Opaque<255>,
        /// User.
        pub uid: u32,
        /// Group.
        pub gid: u32,
        /// Supplementary groups, at most 16.
        pub gids: List<u32, 16>,
    }
}

impl OpaqueAuth {
    /// AUTH_NONE.
    pub const NONE: Self = Self { flavor: AuthFlavor::NONE, body: Opaque(weir_xdr::Bytes::new()) };

    /// Decodes an AUTH_SYS credential.
    ///
    /// # Errors
    /// [`AuthStatus::BadCred`] if it is of another flavor or malformed.
    pub fn auth_sys(&self) -> std::result::Result<AuthSys, AuthStatus> {
        if self.flavor != AuthFlavor::SYS {
            return Err(AuthStatus::BadCred);
        }
        let mut d = Decoder::new(self.body.0.clone());
        let auth = d.get().map_err(|_| AuthStatus::BadCred)?;
        d.finish().map_err(|_| AuthStatus::BadCred)?;
        Ok(auth)
    }
}

impl From<&AuthSys> for OpaqueAuth {
    fn from(auth: &AuthSys) -> Self {
        Self { flavor: AuthFlavor::SYS, body: Opaque(sample::wire(auth)) }
    }
}

xdr_enum! {
    /// Why a credential or verifier was rejected (RFC 5531 section 9).
    pub enum AuthStatus {
        /// The credential is malformed.
        BadCred = 1,
        /// The client must begin a new session.
        RejectedCred = 2,
        /// The verifier is malformed.
        BadVerf = 3,
        /// The verifier expired or was replayed.
        RejectedVerf = 4,
        /// Not accepted for security reasons.
        TooWeak = 5,
        /// The response's verifier is not valid.
        InvalidResp = 6,
        /// Some other reason.
        Failed = 7,
        /// RPCSEC_GSS: no credentials for the user (RFC 2203).
        GssCredProblem = 13,
        /// RPCSEC_GSS: a problem with the context (RFC 2203).
        GssContextProblem = 14,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_xdr::{Bytes, Error};

    fn linux() -> AuthSys {
        AuthSys {
            stamp: 0x0102_0304,
            machine_name: "box".into(),
            uid: 1000,
            gid: 100,
            gids: vec![4, 27].into(),
        }
    }

    #[test]
    fn auth_sys_is_nested_in_an_opaque_body() {
        sample::check(
            &OpaqueAuth::from(&linux()),
            "00000001 00000020 01020304 00000003 626f7800 000003e8 00000064
             00000002 00000004 0000001b",
        );
        assert_eq!(OpaqueAuth::from(&linux()).auth_sys(), Ok(linux()));
        sample::check(&OpaqueAuth::NONE, "00000000 00000000");
    }

    #[test]
    fn limits_hold() {
        let mut auth = linux();
        auth.gids = vec![0; 17].into();
        assert_eq!(OpaqueAuth::from(&auth).auth_sys(), Err(AuthStatus::BadCred));
        let mut auth = linux();
        auth.machine_name = [b'm'; 256].as_slice().into();
        assert_eq!(OpaqueAuth::from(&auth).auth_sys(), Err(AuthStatus::BadCred));
        assert_eq!(OpaqueAuth::NONE.auth_sys(), Err(AuthStatus::BadCred));
        let trailing = OpaqueAuth {
            flavor: AuthFlavor::SYS,
            body: Bytes::from([&sample::wire(&linux())[..], &[0; 4]].concat()).into(),
        };
        assert_eq!(trailing.auth_sys(), Err(AuthStatus::BadCred));
        let long = OpaqueAuth { flavor: AuthFlavor(9), body: [1; 401].as_slice().into() };
        let mut d = Decoder::new(sample::wire(&long));
        assert_eq!(d.get::<OpaqueAuth>(), Err(Error::TooLong));
    }
}
