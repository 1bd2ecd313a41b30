//! Leaders with wrong clocks refuse certificates and hand over.

use comity_runtime::tls::dial;
use tokio::io::AsyncReadExt as _;

use super::*;

/// Knocks at a broker's Raft port as `from`, with a certificate of another time.
async fn knock(federation: &Federation, at: u64, from: u64, time: SystemTime) {
    let id = SpiffeId::broker(federation.domain(), from);
    let pem = federation.ca.new_identity(&id, &[], Duration::from_secs(3600), time).unwrap();
    let source = IdentitySource::new(TlsIdentity::from_pem(&pem).unwrap());
    let tls = ClientTls::new(federation.ca.roots().clone(), source.subscribe());
    let mut stream = dial(&federation.addresses[&at].to_string(), &tls, SOON).await.unwrap();
    // In TLS 1.3 the refusal comes after the client's part is done.
    stream.read_u8().await.unwrap_err();
}

#[test]
fn a_leader_that_refuses_most_others_for_their_time_hands_over() {
    in_time(async || {
        let federation = Federation::new(3);
        let brokers = federation.three().await;
        let index = leader(&brokers).await;
        let old = &brokers[index];
        let others: Vec<u64> = (1..=3).filter(|id| *id != old.id).collect();
        let ahead = SystemTime::now() + Duration::from_secs(7_200);

        // One of the others may have a clock that is off itself.
        knock(&federation, old.id, others[0], ahead).await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert!(old.group.leadership().borrow().is_leader());

        for other in &others {
            knock(&federation, old.id, *other, ahead).await;
        }
        eventually("another leader", || async {
            brokers
                .iter()
                .any(|broker| broker.id != old.id && broker.group.leadership().borrow().is_leader())
                .then_some(())
        })
        .await;
        for broker in brokers {
            broker.stop().await;
        }
    });
}
