//! Looking up a host's programs at its port mapper (rpcbind version 2), and registering some.

use super::client::{ClientLimits, RpcClient};
use super::connect::Source;
use super::error::Error;
use crate::ProgramId;
use crate::rpcbind::{self, Mapping, Procedure, TCP};
use std::net::SocketAddr;

/// A connection to a port mapper.
pub struct PortMapper(RpcClient);

impl PortMapper {
    /// Connects.
    ///
    /// # Errors
    /// [`Error::Socket`] or [`Error::TimedOut`].
    pub async fn connect(
        at: SocketAddr,
        source: Source,
        limits: ClientLimits,
    ) -> Result<Self, Error> {
        RpcClient::connect(at, source, limits).await.map(Self)
    }

    /// Connects to the program of a host whose port mapper listens at `mapper`.
    ///
    /// # Errors
    /// [`Error::NotRegistered`], or those of [`RpcClient::call`] and of connecting.
    pub async fn find(
        mut mapper: SocketAddr,
        source: Source,
        id: ProgramId,
        limits: ClientLimits,
    ) -> Result<RpcClient, Error> {
        let port = Self::connect(mapper, source, limits).await?.port_of(id).await?;
        // The scope id, if there is one, applies to the program's address, too.
        mapper.set_port(port.ok_or(Error::NotRegistered(id))?);
        RpcClient::connect(mapper, source, limits).await
    }

    /// The TCP port of a program; `None`: it is not registered.
    ///
    /// # Errors
    /// Those of [`RpcClient::call`].
    pub async fn port_of(&mut self, id: ProgramId) -> Result<Option<u16>, Error> {
        let ProgramId { program, version } = id;
        let asked = Mapping { program, version, protocol: TCP, port: 0 };
        let port: u32 = self.call(Procedure::GetPort, &asked).await?;
        Ok(u16::try_from(port).ok().filter(|port| *port != 0))
    }

    /// Registers a program's port for a protocol ([`TCP`] or [`UDP`](rpcbind::UDP)); `false`: the
    /// mapper refused.
    ///
    /// # Errors
    /// Those of [`RpcClient::call`].
    pub async fn set(&mut self, id: ProgramId, protocol: u32, port: u16) -> Result<bool, Error> {
        let ProgramId { program, version } = id;
        let mapping = Mapping { program, version, protocol, port: port.into() };
        self.call(Procedure::Set, &mapping).await
    }

    /// Removes all registrations of a program; `false`: there were none, or the mapper refused.
    ///
    /// # Errors
    /// Those of [`RpcClient::call`].
    pub async fn unset(&mut self, id: ProgramId) -> Result<bool, Error> {
        let ProgramId { program, version } = id;
        self.call(Procedure::Unset, &Mapping { program, version, protocol: TCP, port: 0 }).await
    }

    async fn call<R: weir_xdr::Decode>(
        &mut self,
        procedure: Procedure,
        args: &Mapping,
    ) -> Result<R, Error> {
        let id = ProgramId { program: rpcbind::PROGRAM, version: rpcbind::VERSION };
        self.0.call(id, procedure as u32, args).await
    }
}
