//! A cluster that exists only in the hands of the hostile broker, with keys of its own. It plays one side of a peering,
//! under its own name or under that of a member, and does everything that a real agent on that side would.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::Result;
use comity_agent::keys::bundle;
use comity_agent::keys::seal::{self, Binding};
use comity_agent_fabric::{
    Fabric, FabricConfig, FabricMode, PeerConfig, PresharedKey, Role, WireguardKey, WireguardPublicKey,
    fabric_addresses,
};
use comity_agent_model::envelope::Envelope;
use comity_agent_state::record::{HpkePublicKey, SecretKey};
use comity_proto::v1;
use comity_runtime::{IdentityKey, IdentityPublicKey, SystemEntropy};
use sha2::{Digest as _, Sha256};

use super::books::{PeeringEntry, ToldMember};
use super::stolen_authority::TRUST_DOMAIN;

/// Name of the cluster.
pub(crate) const IMPOSTOR: &str = "impostor";
/// Its institution, which nobody pins.
pub(crate) const IMPOSTOR_INSTITUTION: &str = "elsewhere";

/// Domain of the origin's proof that it has the pre-shared key.
const PSK_PROOF_DOMAIN: &[u8] = b"comity-proof-v1";
const WIREGUARD_SECRET: [u8; 32] = [0x5a; 32];
const HPKE_SEED: [u8; 32] = [0x6b; 32];
/// Pre-shared key and nonce where the impostor is the donor.
const PRESHARED: [u8; 32] = [0x7c; 32];
const NONCE: [u8; 32] = [0x8d; 32];
const KEEPALIVE: Duration = Duration::from_secs(25);

/// An envelope that the impostor opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OpenedEnvelope {
    /// Peering.
    pub(crate) peering: String,
    /// Epoch.
    pub(crate) epoch: u32,
    /// Lease; empty for the peering itself.
    pub(crate) lease: String,
    /// Kind of its content.
    pub(crate) step: String,
    /// Cluster that sealed it.
    pub(crate) from: String,
    /// What was in it.
    pub(crate) content: Vec<u8>,
}

/// The keys of the impostor, and its end of tunnels.
pub(crate) struct Impostor {
    identity: IdentityKey,
    fabric: Fabric,
}

impl Impostor {
    /// An impostor with a UDP socket on loopback.
    ///
    /// # Errors
    /// When no port is free.
    pub(crate) async fn start() -> Result<Self> {
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let fabric = Fabric::bind(FabricConfig { listen, mode: FabricMode::Netstack }).await?;
        Ok(Self { identity: IdentityKey::generate(&SystemEntropy), fabric })
    }

    /// What the broker says about it.
    pub(crate) fn told(&self) -> ToldMember {
        ToldMember { identity_key: self.identity.public().to_string(), institution: IMPOSTOR_INSTITUTION.to_owned() }
    }

    /// Its signed keys for a side of a peering, under the name of that side's cluster.
    fn bundle(&self, entry: &PeeringEntry, side: v1::Side) -> v1::KeyBundle {
        let bundle = v1::KeyBundle {
            peering: entry.peering.id.clone(),
            epoch: entry.peering.epoch,
            cluster: entry.cluster_of(side).to_owned(),
            side: side.into(),
            wireguard_public: WireguardKey::from_bytes(WIREGUARD_SECRET).public().to_bytes().to_vec(),
            hpke_public: seal::hpke_public(&SecretKey::new(HPKE_SEED)).as_bytes().to_vec(),
            endpoints: vec![self.fabric.local_addr().to_string()],
            ..v1::KeyBundle::default()
        };
        bundle::sign(bundle, &self.identity, None)
    }

    /// Opens an envelope, whoever it was meant for.
    pub(crate) fn open(
        &self,
        envelope: &v1::Envelope,
        members: &BTreeMap<String, ToldMember>,
    ) -> Option<OpenedEnvelope> {
        let sender: IdentityPublicKey = members.get(&envelope.from)?.identity_key.parse().ok()?;
        let received = Envelope::try_from(envelope.clone()).ok()?;
        let content = seal::open(TRUST_DOMAIN, &received, &SecretKey::new(HPKE_SEED), &sender).ok()?;
        let v1::Envelope { peering, epoch, lease, step, from, .. } = envelope.clone();
        Some(OpenedEnvelope { peering, epoch, lease, step, from, content: content.to_vec() })
    }

    /// Seals content as the played side, for the other one.
    pub(crate) fn seal(
        &self,
        entry: &PeeringEntry,
        lease: &str,
        step: &str,
        sequence: u64,
        content: &[u8],
    ) -> Option<v1::Envelope> {
        let side = entry.played?;
        let (other, keys) = match side {
            v1::Side::Donor => (v1::Side::Origin, &entry.origin_keys),
            _ => (v1::Side::Donor, &entry.donor_keys),
        };
        let binding = Binding {
            federation: TRUST_DOMAIN.to_owned(),
            peering: entry.peering.id.clone(),
            epoch: entry.peering.epoch,
            lease: lease.to_owned(),
            step: step.to_owned(),
            sequence,
            from: entry.cluster_of(side).to_owned(),
            to: entry.cluster_of(other).to_owned(),
        };
        let receiver = HpkePublicKey::from_bytes(&keys.as_ref()?.hpke_public)?;
        seal::seal(&binding, content, &receiver, &self.identity, &SystemEntropy).ok()
    }

    /// Takes the next steps of the played side of a peering; returns envelopes to deliver.
    pub(crate) fn play(&self, entry: &mut PeeringEntry, opened: &[OpenedEnvelope]) -> Vec<v1::Envelope> {
        let Some(side) = entry.played else { return Vec::new() };
        match entry.peering.state() {
            v1::PeeringState::Proposed | v1::PeeringState::Keys if entry.keys_mut(side).is_none() => {
                let bundle = self.bundle(entry, side);
                entry.take_keys(side, bundle);
                self.psk(entry, side)
            }
            v1::PeeringState::Authenticating => {
                let of_entry = |opened: &&OpenedEnvelope| {
                    opened.peering == entry.peering.id && opened.epoch == entry.peering.epoch
                };
                let newest = |step: &str| opened.iter().filter(of_entry).rev().find(|opened| opened.step == step);
                match side {
                    v1::Side::Donor if newest("proof").is_some() => {
                        entry.peering.set_state(v1::PeeringState::Establishing);
                        self.tunnel(entry, side, PRESHARED);
                        Vec::new()
                    }
                    v1::Side::Donor => self.psk(entry, side),
                    _ => self.prove(entry, newest("psk").map(|opened| opened.content.as_slice()).unwrap_or_default()),
                }
            }
            v1::PeeringState::Establishing => {
                entry.take_established(side);
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    /// As donor: the pre-shared key for the origin, once its keys are known.
    fn psk(&self, entry: &PeeringEntry, side: v1::Side) -> Vec<v1::Envelope> {
        if side != v1::Side::Donor {
            return Vec::new();
        }
        self.seal(entry, "", "psk", 1, &[PRESHARED, NONCE].concat()).into_iter().collect()
    }

    /// As origin: the proof that it opened the pre-shared key.
    fn prove(&self, entry: &PeeringEntry, opened: &[u8]) -> Vec<v1::Envelope> {
        let Some((preshared, nonce)) = opened.split_first_chunk::<32>() else { return Vec::new() };
        self.tunnel(entry, v1::Side::Origin, *preshared);
        let proof = Sha256::new().chain_update(PSK_PROOF_DOMAIN).chain_update(preshared).chain_update(nonce).finalize();
        self.seal(entry, "", "proof", 1, &proof).into_iter().collect()
    }

    /// Brings up its end of a tunnel.
    fn tunnel(&self, entry: &PeeringEntry, side: v1::Side, preshared: [u8; 32]) {
        let is_donor = side == v1::Side::Donor;
        let keys = if is_donor { &entry.origin_keys } else { &entry.donor_keys };
        let Some(keys) = keys else { return };
        let Ok(remote_public) = <[u8; 32]>::try_from(keys.wireguard_public.as_slice()) else { return };
        let epoch = u64::from(entry.peering.epoch);
        let addresses = fabric_addresses(&entry.peering.id, epoch);
        let (local_address, remote_address) =
            if is_donor { (addresses.donor, addresses.origin) } else { (addresses.origin, addresses.donor) };
        let config = PeerConfig {
            peering: entry.peering.id.clone(),
            epoch,
            local_secret: WireguardKey::from_bytes(WIREGUARD_SECRET),
            remote_public: WireguardPublicKey::from_bytes(remote_public),
            preshared: PresharedKey::from_bytes(preshared),
            endpoints: keys.endpoints.iter().filter_map(|endpoint| endpoint.parse().ok()).collect(),
            local_address,
            remote_address,
            keepalive: KEEPALIVE,
            role: if is_donor { Role::Donor } else { Role::Origin },
            remote_cluster: keys.cluster.clone(),
            routes: Vec::new(),
            remote_api: None,
        };
        if let Err(error) = self.fabric.add_peer(config) {
            tracing::debug!(%error, peering = entry.peering.id, "the impostor has no tunnel");
        }
    }

    /// Whether the other side of a peering completed a handshake of the tunnel.
    pub(crate) fn has_tunnel(&self, peering: &str) -> bool {
        self.fabric.peer(peering).is_some_and(|peer| peer.status().established)
    }

    /// Takes its end of a tunnel down.
    pub(crate) fn close(&self, peering: &str) {
        self.fabric.remove_peer(peering);
    }
}
