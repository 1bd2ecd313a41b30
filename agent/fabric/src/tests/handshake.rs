//! Which peers get a session.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_agents_shake_hands_and_both_know_the_round_trip() {
    let pair = pair().await;
    for (handle, other) in [(&pair.donor, &pair.origin_fabric), (&pair.origin, &pair.donor_fabric)] {
        let status = handle.status();
        assert!(status.established);
        assert!(status.last_handshake.is_some());
        assert!(status.handshake_rtt.unwrap() < Duration::from_secs(1));
        assert_eq!(status.endpoint, Some(other.local_addr()));
        assert_eq!((status.connections, status.rejected_packets), (0, 0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_preshared_key_never_completes() {
    let (donor_fabric, origin_fabric) = (fabric().await, fabric().await);
    let mut peering = Peering::new("p");
    let donor = peering.donor(&donor_fabric, &origin_fabric);
    peering.preshared = PresharedKey::generate().unwrap();
    let origin = peering.origin(&origin_fabric, &donor_fabric);
    let (one, other) = tokio::join!(donor.wait_handshake(NEVER), origin.wait_handshake(NEVER));
    assert!(matches!(one, Err(FabricError::HandshakeTimeout { .. })), "{one:?}");
    assert!(matches!(other, Err(FabricError::HandshakeTimeout { .. })), "{other:?}");
    assert!(!donor.status().established && !origin.status().established);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_public_key_never_completes() {
    let (donor_fabric, origin_fabric) = (fabric().await, fabric().await);
    let mut peering = Peering::new("p");
    let donor = peering.donor(&donor_fabric, &origin_fabric);
    peering.donor = WireguardKey::generate().unwrap();
    let origin = peering.origin(&origin_fabric, &donor_fabric);
    let (one, other) = tokio::join!(donor.wait_handshake(NEVER), origin.wait_handshake(NEVER));
    assert!(one.is_err() && other.is_err());
    assert!(!donor.status().established && !origin.status().established);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_second_candidate_is_tried_when_the_first_is_silent() {
    let (donor_fabric, origin_fabric) = (fabric().await, fabric().await);
    let silent = UdpSocket::bind(loopback(0)).await.unwrap();
    let peering = Peering::new("p");
    let donor = donor_fabric.add_peer(peering.side(Role::Donor, &[])).unwrap();
    let candidates = [silent.local_addr().unwrap(), donor_fabric.local_addr()];
    let origin = origin_fabric.add_peer(peering.side(Role::Origin, &candidates)).unwrap();
    origin.wait_handshake(SOON).await.unwrap();
    donor.wait_handshake(SOON).await.unwrap();
    assert_eq!(origin.status().endpoint, Some(donor_fabric.local_addr()));
    let asked = tokio::time::timeout(SOON, silent.recv(&mut [0; 256])).await.unwrap();
    assert_eq!(asked.unwrap(), 148);
}
