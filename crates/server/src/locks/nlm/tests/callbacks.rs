//! Calls to hosts that do not answer.

use super::*;
use crate::locks::host_network::{HostAccess, HostNetwork};
use crate::locks::nlm::HostCalls;
use crate::locks::nlm::callbacks::{CONNECTIONS, Route};
use std::net::Ipv6Addr;
use weir_xdr::Bytes;

/// A network that answers no call and reports whom the server calls.
struct Silent(UnboundedSender<IpAddr>);

#[async_trait]
impl HostNetwork for Silent {
    async fn call(&self, host: IpAddr, _: ProgramId, _: u32, _: Bytes) -> Option<Bytes> {
        self.0.send(host).unwrap();
        std::future::pending().await
    }
}

/// A host has all addresses of its network.
#[tokio::test]
async fn answers_to_all_addresses_of_a_host_leave_room_for_others() {
    let f = Fixture::new().await;
    let services = f.server.as_ref().unwrap().services.clone();
    let (report, mut called) = unbounded_channel();
    let access = HostAccess { mapper_port: 0, network: Some(Arc::new(Silent(report))) };
    let calls = HostCalls::new(access, CancellationToken::new());
    let answer = |host: Ipv6Addr| {
        let route = Route { host: host.into(), server: Ipv6Addr::LOCALHOST.into() };
        let results = Bytes::from(vec![0; 2048]);
        calls.answer(&services, route, nlm::Procedure::TestRes, results);
    };
    for _ in 0..4 {
        (1..=1024).for_each(|number| answer(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, number)));
    }
    let other = Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, 0, 1);
    answer(other);
    let mut of_greedy = 0;
    let is_called = async {
        while called.recv().await.unwrap() != other {
            of_greedy += 1;
        }
    };
    timeout(Duration::from_secs(60), is_called).await.expect("the other host is called");
    assert!(of_greedy <= CONNECTIONS / 2, "{of_greedy}");
}
