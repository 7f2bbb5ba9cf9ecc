//! A network of two: a namespace for the server and one for the client, connected by a link of a
//! given rate; removed on drop.

use crate::peers::Host;
use crate::scratch::call;
use std::net::Ipv4Addr;
use std::process::Command;
use std::str::FromStr;
use weir_tools::failure::{Failure, Result};

/// Addresses for documentation (RFC 5737), which belong to no host.
const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);

/// How fast the link is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rate {
    /// Bits per second, in each direction.
    Limited(u64),
    /// As fast as this machine allows.
    Unlimited,
}

impl FromStr for Rate {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const BAD: &str = "write it like 1gbit, 100mbit, 2.5gbit, or unlimited";
        if text == "unlimited" {
            return Ok(Self::Unlimited);
        }
        let (number, unit) = [("gbit", 1e9), ("mbit", 1e6), ("kbit", 1e3)]
            .iter()
            .find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)))
            .ok_or(BAD)?;
        let bits = number.parse::<f64>().map_err(|_| BAD)? * unit;
        if (1e5..=1e12).contains(&bits) { Ok(Self::Limited(bits as u64)) } else { Err(BAD) }
    }
}

impl std::fmt::Display for Rate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Limited(bits) => write!(f, "{} Mbit/s", *bits as f64 / 1e6),
            Self::Unlimited => f.write_str("unlimited"),
        }
    }
}

impl Rate {
    /// Limits the sending rate of a device in a namespace.
    pub(crate) fn limit(self, namespace: &str, device: &str) -> Result<()> {
        let Self::Limited(bits) = self else { return Ok(()) };
        let rate = format!("{bits}bit");
        let mut tc = Command::new("tc");
        tc.args(["-n", namespace, "qdisc", "add", "dev", device, "root", "tbf", "rate", &rate]);
        call(tc.args(["burst", "128kb", "latency", "50ms"]))
    }
}

/// The two namespaces.
pub(crate) struct Network {
    server: String,
    client: String,
}

impl Network {
    /// Makes it; needs root.
    pub(crate) fn make(rate: Rate) -> Result<Self> {
        let name = |end| format!("weir-{}-{end}", std::process::id());
        let this = Self { server: name("s"), client: name("c") };
        this.set_up(rate).map_err(|failure| {
            Failure::new("make a network with a link of that rate", failure.to_string())
                .advice("it needs root, ip and tc; or use --link unlimited")
        })?;
        Ok(this)
    }

    fn set_up(&self, rate: Rate) -> Result<()> {
        let ip = |args: &[&str]| call(Command::new("ip").args(args));
        let (server, client) = (&*self.server, &*self.client);
        ip(&["netns", "add", server])?;
        ip(&["netns", "add", client])?;
        let link = ["link", "add", DEVICE, "netns", server, "type", "veth"];
        ip(&[&link[..], &["peer", "name", DEVICE, "netns", client]].concat())?;
        for (namespace, address) in [(server, SERVER), (client, CLIENT)] {
            let address = format!("{address}/24");
            ip(&["-n", namespace, "addr", "add", &address, "dev", DEVICE])?;
            ip(&["-n", namespace, "link", "set", "lo", "up"])?;
            ip(&["-n", namespace, "link", "set", DEVICE, "up"])?;
            rate.limit(namespace, DEVICE)?;
        }
        Ok(())
    }

    /// The server's place.
    pub(crate) fn server(&self) -> Host {
        Host { namespace: Some(self.server.clone()), address: SERVER.into() }
    }

    /// The client's place.
    pub(crate) fn client(&self) -> Host {
        Host { namespace: Some(self.client.clone()), address: CLIENT.into() }
    }
}

const DEVICE: &str = "weir0";

impl Drop for Network {
    fn drop(&mut self) {
        for namespace in [&self.server, &self.client] {
            // It may not exist.
            let _ = call(Command::new("ip").args(["netns", "del", namespace]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_as_tc_writes_them() {
        assert_eq!("1gbit".parse(), Ok(Rate::Limited(1_000_000_000)));
        assert_eq!("2.5gbit".parse(), Ok(Rate::Limited(2_500_000_000)));
        assert_eq!("unlimited".parse(), Ok(Rate::Unlimited));
        for bad in ["1", "gbit", "0mbit", "-1gbit", "1e9gbit", "nangbit"] {
            assert!(bad.parse::<Rate>().is_err(), "{bad}");
        }
        assert_eq!(Rate::Limited(1_000_000_000).to_string(), "1000 Mbit/s");
    }
}
