//! Attacks on what belongs together: lease, peering, side, keys and the cluster behind them.

use comity_agent_delivery::{ApiCredential, Credential, CredentialKind};
use comity_proto::v1;
use comity_runtime::SecretString;

use super::AttackRound;
use crate::hostile::books::{DONOR_CLUSTER, ORIGIN_CLUSTER};
use crate::hostile::impostor::{IMPOSTOR, IMPOSTOR_INSTITUTION};
use crate::watch::now_ms;

const UNBOUND: &str = "its peering is with another cluster than the lease names";

impl AttackRound<'_> {
    /// Points the active lease at a peering of the donor with the impostor; returns that peering.
    pub(crate) async fn swap_peering(&mut self) -> String {
        let forged = self.forged_peering(IMPOSTOR, DONOR_CLUSTER, v1::Side::Origin).await;
        let (lease, to) = (self.lease.clone(), forged.clone());
        self.federation.broker.tamper(move |cluster, desired| {
            for lease in desired.leases.iter_mut().filter(|held| cluster == DONOR_CLUSTER && held.id == lease) {
                lease.peering.clone_from(&to);
            }
        });
        forged
    }

    /// Begins a new epoch of the honest peering with keys of the impostor on one side, which it calls a cluster of
    /// another institution if `label` is not empty; returns the peering.
    pub(crate) async fn impersonate(&mut self, side: v1::Side, label: &str) -> String {
        let peering = self.peering();
        self.with_peering(&peering, |entry| {
            (entry.played, entry.label) = (Some(side), label.to_owned());
            entry.begin_epoch(entry.peering.epoch + 1);
        });
        self.handshake(&peering).await;
        peering
    }

    /// As [`impersonate`](Self::impersonate) of the origin, under an institution that nobody pins.
    pub(crate) async fn relabel_institution(&mut self) -> String {
        self.impersonate(v1::Side::Origin, IMPOSTOR_INSTITUTION).await
    }

    /// Grants a lease of the honest origin over a peering of the donor with the impostor; returns the lease.
    pub(crate) async fn swap_origin(&mut self) -> String {
        let forged = self.forged_peering(IMPOSTOR, DONOR_CLUSTER, v1::Side::Origin).await;
        let placement = self.federation.broker.read(|books| books.place(DONOR_CLUSTER, 1));
        self.hide(ORIGIN_CLUSTER, &forged);
        self.invent_forbidden(&forged, placement, UNBOUND, |_| {})
    }

    /// Says nothing to one side of leases over a peering.
    fn hide(&self, from: &'static str, peering: &str) {
        let hidden = peering.to_owned();
        self.federation.broker.tamper(move |cluster, desired| {
            desired.leases.retain(|lease| cluster != from || lease.peering != hidden);
        });
    }

    /// Grants a lease of the honest donor over a peering of the origin with the impostor, which delivers a credential
    /// of its own; returns the lease.
    pub(crate) async fn swap_donor(&mut self) -> String {
        let forged = self.forged_peering(ORIGIN_CLUSTER, IMPOSTOR, v1::Side::Donor).await;
        self.hide(DONOR_CLUSTER, &forged);
        let placement = self.federation.broker.read(|books| books.place(DONOR_CLUSTER, 1));
        let lease = self.invent_forbidden(&forged, placement, UNBOUND, |lease| {
            lease.set_state(v1::LeaseState::Connecting);
            lease.donor_ready = true;
        });
        let broker = &self.federation.broker;
        let content = forged_credential(&lease, broker.root_pem());
        let sealed = broker.read(|books| {
            let entry = books.peerings.get(&forged)?;
            broker.impostor().seal(entry, &lease, "credential", 1, &content)
        });
        broker.change(|books| sealed.into_iter().for_each(|envelope| books.relay(envelope)));
        lease
    }

    /// Grants a lease to the impostor itself; returns the lease.
    pub(crate) async fn lend_to_stranger(&mut self) -> String {
        let forged = self.forged_peering(IMPOSTOR, DONOR_CLUSTER, v1::Side::Origin).await;
        let placement = self.federation.broker.read(|books| books.place(DONOR_CLUSTER, 1));
        let reason = "the donor's policy does not allow its origin";
        self.invent_forbidden(&forged, placement, reason, |lease| lease.origin = IMPOSTOR.to_owned())
    }

    /// Grants a lease over a peering of which only the id exists.
    pub(crate) fn invent_peering(&mut self) {
        let placement = self.federation.broker.read(|books| books.place(DONOR_CLUSTER, 1));
        self.invent_forbidden("peer-999999999", placement, UNBOUND, |lease| {
            lease.set_state(v1::LeaseState::Connecting)
        });
    }

    /// Says that everything is ready that is not.
    pub(crate) fn lie_that_all_is_ready(&mut self) {
        let forged = self.federation.broker.change(|books| {
            let forged = books.propose(ORIGIN_CLUSTER, DONOR_CLUSTER, None);
            if let Some(entry) = books.peerings.get_mut(&forged) {
                entry.peering.set_state(v1::PeeringState::Established);
            }
            forged
        });
        let placement = self.federation.broker.read(|books| books.place(DONOR_CLUSTER, 1));
        self.invent(&forged, placement, |lease| {
            lease.set_state(v1::LeaseState::Active);
            (lease.donor_ready, lease.origin_ready) = (true, true);
            lease.expires_at_ms = now_ms() + 60_000;
        });
    }

    /// Alters keys and endpoints of honest bundles in a new epoch.
    pub(crate) async fn alter_keys(&mut self) {
        let (peering, which) = (self.peering(), self.dice.within(0..=4));
        self.federation.broker.tamper(move |_, desired| {
            let directives = desired.peerings.iter_mut();
            for bundle in
                directives.flat_map(|directive| [&mut directive.origin_keys, &mut directive.donor_keys]).flatten()
            {
                match which {
                    0 => bundle.endpoints = vec!["127.0.0.1:9".to_owned()],
                    1 => bundle.wireguard_public.reverse(),
                    2 => bundle.hpke_public.reverse(),
                    3 => bundle.identity_key = String::new(),
                    _ => bundle.signature.reverse(),
                }
            }
        });
        self.with_peering(&peering, |entry| entry.begin_epoch(entry.peering.epoch + 1));
        self.handshake(&peering).await;
    }
}

/// A credential that leads to the impostor.
fn forged_credential(lease: &str, ca_pem: &str) -> Vec<u8> {
    let credential = Credential::Api(ApiCredential {
        kind: CredentialKind::Site,
        ca_pem: ca_pem.to_owned(),
        tls_server_name: "impostor.example".to_owned(),
        token: SecretString::new("a token of the impostor".to_owned()),
        namespace: format!("comity-{lease}"),
        expires_at_ms: now_ms() + 3_600_000,
        server_port: 6_443,
    });
    credential.encode().to_vec()
}
