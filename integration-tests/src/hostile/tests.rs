//! Each attack by itself. Its effect must be absent, and the agent must report what it refuses.
#![expect(clippy::unwrap_used, reason = "tests")]

mod found_later;
mod signed_policy;
mod with_api_servers;

use super::attack_round::AttackRound;
use super::books::{DONOR_CLUSTER, ORIGIN_CLUSTER};
use super::broker_core::WrongRenewal;
use super::hostile_federation::{HostileFederation, SOON, Setup, Trust};
use super::hostile_ledger::HostileLedger;
use super::impostor::IMPOSTOR;
use super::*;
use crate::wait::until;
use comity_proto::v1;

/// What a test needs beside its round.
struct Attacked {
    federation: HostileFederation,
    ledger: HostileLedger,
    dice: Dice,
}

impl Attacked {
    async fn start(setup: Setup) -> Self {
        let federation = HostileFederation::start(setup).await.unwrap();
        Self { federation, ledger: HostileLedger::default(), dice: Dice::new(7) }
    }

    /// A round with an active lease.
    async fn round(&mut self) -> AttackRound<'_> {
        AttackRound::begin(&self.federation, &mut self.ledger, &mut self.dice).await.unwrap()
    }

    /// Nothing was violated, the attack ends, and another honest lease becomes active.
    async fn nothing_was_gained(mut self) {
        let round = self.round_after_attack().await;
        round.end().await;
        self.federation.active_lease(1).await.unwrap();
        self.ledger.check(&self.federation).await.unwrap();
        assert!(self.ledger.violations().is_empty(), "{:#?}", self.ledger.violations());
        let stores = self.federation.stop().await.unwrap();
        assert!(!stores.preshared().unwrap().is_empty() && self.ledger.tokens() > 0, "nothing to search for");
        self.ledger.search_disks(&self.federation, &stores).unwrap();
        assert!(self.ledger.violations().is_empty(), "{:#?}", self.ledger.violations());
    }

    async fn round_after_attack(&mut self) -> AttackRound<'_> {
        let lease = String::new();
        let round = AttackRound { federation: &self.federation, ledger: &mut self.ledger, dice: &mut self.dice, lease };
        round.pause().await;
        round.ledger.check(&self.federation).await.unwrap();
        let violations = round.ledger.violations();
        assert!(violations.is_empty(), "{violations:#?}\nrefused: {:#?}", self.federation.broker.refused());
        round
    }
}

impl AttackRound<'_> {
    /// Ends the honest lease, makes another one active, and shows both agents the state from before once more.
    async fn restore_old_snapshot(&mut self) {
        let (broker, lease) = (&self.federation.broker, self.lease.clone());
        let holds = |state: &v1::DesiredState| {
            state.leases.iter().any(|held| held.id == lease && held.state() == v1::LeaseState::Active)
        };
        let find = |cluster| broker.sent(cluster).into_iter().rev().find(holds);
        let old = async || Ok(find(ORIGIN_CLUSTER).zip(find(DONOR_CLUSTER)));
        let (at_origin, at_donor) = until("a state with the active lease", SOON, old).await.unwrap();
        broker.change(|books| books.release(&lease));
        let is_gone = async || Ok(broker.read(|books| !books.leases.contains_key(&lease)).then_some(()));
        until("the lease to end", SOON, is_gone).await.unwrap();
        // A later lease, so that the donor has seen a higher fencing token.
        self.federation.active_lease(1).await.unwrap();
        self.ledger.forbid(&lease, "it ended before");
        broker.tamper(move |cluster, desired| {
            let old = if cluster == ORIGIN_CLUSTER { &at_origin } else { &at_donor };
            *desired = v1::DesiredState { revision: desired.revision, ..old.clone() };
        });
    }
}

/// Waits until an agent has refused something about a lease or peering; returns its code.
async fn refusal(federation: &HostileFederation, cluster: &str, subject: &str) -> String {
    let refused = until(&format!("{cluster} to refuse {subject}"), SOON, async || {
        let mut refused = federation.broker.refused().into_iter();
        Ok(refused.find(|refused| refused.cluster == cluster && refused.subject == subject))
    })
    .await
    .unwrap();
    println!("{cluster} refuses {subject}: {} ({})", refused.message, refused.code);
    refused.code
}

/// The harness itself: an honest broker makes a lease active, and learns no secret.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_honest_broker_makes_a_lease_active_and_learns_no_secret() {
    for trust in [Trust::Pinned, Trust::FirstUse] {
        let mut attacked = Attacked::start(Setup::new(trust)).await;
        let lease = attacked.round().await.lease;
        assert!(attacked.federation.kubeconfigs().await.unwrap().contains_key(&lease));
        assert_eq!(attacked.federation.grants().await.unwrap().len(), 1);
        attacked.nothing_was_gained().await;
    }
}

/// The harness itself: where the donor's policy allows the impostor, it obtains all that the ledger looks for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_ledger_sees_a_credential_a_tunnel_and_a_grant_of_the_impostor() {
    let setup = Setup { allowed_origins: &[ORIGIN_CLUSTER, IMPOSTOR], ..Setup::new(Trust::FirstUse) };
    let mut attacked = Attacked::start(setup).await;
    let mut round = attacked.round().await;
    round.lend_to_stranger().await;
    until("the impostor's gains", SOON, async || {
        round.ledger.check(round.federation).await?;
        let violations = round.ledger.violations().join("\n");
        let gains = ["the impostor opened the credential of", "the impostor has a tunnel to", "grants lease-"];
        Ok(gains.iter().all(|gain| violations.contains(gain)).then_some(()))
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_repoints_lease_to_other_peering() {
    let setup = Setup { allowed_origins: &[ORIGIN_CLUSTER, IMPOSTOR], ..Setup::new(Trust::FirstUse) };
    let mut attacked = Attacked::start(setup).await;
    let mut round = attacked.round().await;
    let lease = round.lease.clone();
    let peering = round.swap_peering().await;
    refusal(round.federation, DONOR_CLUSTER, &lease).await;
    // The impostor's own peering is lawful here; the lease of another cluster over it is not.
    round.federation.broker.impostor().close(&peering);
    attacked.nothing_was_gained().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_relabels_institution_to_skip_pin() {
    // Whoever is of no pinned institution needs no voucher.
    let setup = Setup { require_vouchers: false, ..Setup::new(Trust::Pinned) };
    let mut attacked = Attacked::start(setup).await;
    let mut round = attacked.round().await;
    let peering = round.relabel_institution().await;
    refusal(round.federation, DONOR_CLUSTER, &peering).await;
    attacked.nothing_was_gained().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_swaps_identity_key_between_epochs() {
    for side in [v1::Side::Origin, v1::Side::Donor] {
        let mut attacked = Attacked::start(Setup::new(Trust::FirstUse)).await;
        let mut round = attacked.round().await;
        let peering = round.impersonate(side, "").await;
        let victim = if side == v1::Side::Origin { DONOR_CLUSTER } else { ORIGIN_CLUSTER };
        refusal(round.federation, victim, &peering).await;
        attacked.nothing_was_gained().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_lease_origin_differs_from_peer() {
    let setup = Setup { allowed_origins: &[ORIGIN_CLUSTER, IMPOSTOR], ..Setup::new(Trust::FirstUse) };
    let mut attacked = Attacked::start(setup).await;
    let mut round = attacked.round().await;
    let lease = round.swap_origin().await;
    refusal(round.federation, DONOR_CLUSTER, &lease).await;
    let peerings: Vec<String> = round.federation.broker.read(|books| books.peerings.keys().cloned().collect());
    peerings.iter().for_each(|peering| round.federation.broker.impostor().close(peering));
    attacked.nothing_was_gained().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_swaps_donor_under_origin() {
    let mut attacked = Attacked::start(Setup::new(Trust::FirstUse)).await;
    let mut round = attacked.round().await;
    let lease = round.swap_donor().await;
    refusal(round.federation, ORIGIN_CLUSTER, &lease).await;
    attacked.nothing_was_gained().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_zero_devices_huge_resource_count() {
    let mut attacked = Attacked::start(Setup::new(Trust::Pinned)).await;
    let mut round = attacked.round().await;
    for count in [64, u64::MAX] {
        let lease = round.zero_devices(count);
        refusal(round.federation, DONOR_CLUSTER, &lease).await;
    }
    attacked.nothing_was_gained().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_placement_exceeds_local_reserve() {
    let mut attacked = Attacked::start(Setup::new(Trust::Pinned)).await;
    let mut round = attacked.round().await;
    let lease = round.exceed_reserve();
    refusal(round.federation, DONOR_CLUSTER, &lease).await;
    attacked.nothing_was_gained().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_fencing_token_max_wedges_donor() {
    let mut attacked = Attacked::start(Setup::new(Trust::Pinned)).await;
    let mut round = attacked.round().await;
    let lease = round.huge_fencing_token(u64::MAX, v1::LeaseState::Placed);
    refusal(round.federation, DONOR_CLUSTER, &lease).await;
    // A lease that ends is noted, so that the donor reports it as clean once. It must not move the fence either.
    let lease = round.huge_fencing_token(1 << 63, v1::LeaseState::Ending);
    let broker = &round.federation.broker;
    let is_clean = || broker.read(|books| books.leases.get(&lease).is_none_or(|held| !held.donor_ready));
    until("the donor to report it as clean", SOON, async || Ok(is_clean().then_some(()))).await.unwrap();
    // Another honest lease becomes active.
    attacked.nothing_was_gained().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_restores_old_snapshot_revives_lease() {
    let mut attacked = Attacked::start(Setup::new(Trust::Pinned)).await;
    let mut round = attacked.round().await;
    let lease = round.lease.clone();
    round.restore_old_snapshot().await;
    refusal(round.federation, DONOR_CLUSTER, &lease).await;
    attacked.nothing_was_gained().await;
}

/// No renewal makes an agent somebody else, or leaves it without a key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_renews_a_certificate_for_another_key() {
    let setup = Setup { certificate_validity: Duration::from_secs(12), ..Setup::new(Trust::Pinned) };
    let mut attacked = Attacked::start(setup).await;
    let round = attacked.round().await;
    let broker = &round.federation.broker;
    let whims = [WrongRenewal::Key, WrongRenewal::Cluster, WrongRenewal::Authority];
    broker.lie(|lies| lies.renewals = whims.to_vec());
    until("a renewal of each kind", SOON, async || Ok((broker.renewals() >= 3).then_some(()))).await.unwrap();
    // The check includes the identities on both disks.
    attacked.round_after_attack().await;
}

/// The next honest epoch has a lower number, and its tunnel comes up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_epoch_max_wedges_peering() {
    let mut attacked = Attacked::start(Setup::new(Trust::Pinned)).await;
    let mut round = attacked.round().await;
    let (lease, peering) = (round.lease.clone(), round.peering());
    round.huge_epoch().await;
    for cluster in [ORIGIN_CLUSTER, DONOR_CLUSTER] {
        let tunnels = round.federation.status(cluster).await.unwrap().tunnels;
        assert!(tunnels[&peering] >= u32::MAX - 1, "the attack did not go through: {tunnels:?}");
    }
    assert!(round.federation.peering_established(&lease).await.unwrap());
    attacked.nothing_was_gained().await;
}

/// No envelope is lost over it, so that the handshake goes on at once and needs no further epoch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_names_another_epoch_during_a_handshake() {
    let mut attacked = Attacked::start(Setup::new(Trust::Pinned)).await;
    let round = attacked.round().await;
    let (lease, peering) = (round.lease.clone(), round.peering());
    let broker = &round.federation.broker;
    for victim in [ORIGIN_CLUSTER, DONOR_CLUSTER] {
        broker.tamper(move |cluster, desired| {
            let peerings = desired.peerings.iter_mut().filter(|_| cluster == victim);
            // Once there is an envelope of the true epoch to lose.
            for peering in peerings.filter_map(|held| held.peering.as_mut()) {
                if desired.envelopes.iter().any(|envelope| envelope.epoch == peering.epoch) {
                    peering.epoch = 4_000;
                }
            }
        });
        round.with_peering(&peering, |entry| entry.begin_epoch(entry.peering.epoch + 1));
        round.handshake(&peering).await;
        let epoch = || broker.read(|books| books.peerings[&peering].peering.epoch);
        let before = epoch();
        broker.be_honest();
        assert!(round.federation.peering_established(&lease).await.unwrap());
        assert_eq!(epoch(), before, "{victim}");
    }
    attacked.nothing_was_gained().await;
}

/// The honest broker learns of the token from the donor's refusal, and goes on above it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_skips_fencing_tokens() {
    let mut attacked = Attacked::start(Setup::new(Trust::Pinned)).await;
    let mut round = attacked.round().await;
    round.skip_tokens().await;
    round.end().await;
    attacked.federation.active_lease(1).await.unwrap();
    let refused = attacked.federation.broker.refused();
    assert!(refused.iter().any(|refused| refused.code == "token-too-low"), "{refused:?}");
    attacked.nothing_was_gained().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_acknowledges_an_end_that_it_forgets() {
    let mut attacked = Attacked::start(Setup::new(Trust::Pinned)).await;
    let mut round = attacked.round().await;
    let lease = round.lease.clone();
    round.forget_ends().await;
    let is_waiting = round.federation.broker.read(|books| books.leases.contains_key(&lease));
    assert!(is_waiting, "the broker still waits for both ends");
    round.federation.leases_ended().await.unwrap();
    attacked.nothing_was_gained().await;
}

/// The agents keep the certificate that they have, and renew it once the broker is honest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_renews_with_a_certificate_that_ends_at_once() {
    let setup = Setup { certificate_validity: Duration::from_secs(20), ..Setup::new(Trust::Pinned) };
    let mut attacked = Attacked::start(setup).await;
    let round = attacked.round().await;
    let broker = &round.federation.broker;
    broker.lie(|lies| lies.renewals = vec![WrongRenewal::Short]);
    until("renewals of both agents", SOON, async || Ok((broker.renewals() >= 2).then_some(()))).await.unwrap();
    // Who took one of those is without any now.
    broker.lie(|lies| lies.renewals = vec![WrongRenewal::Authority]);
    tokio::time::sleep(Duration::from_secs(3)).await;
    broker.be_honest();
    broker.restart();
    // Longer than the certificates that they had.
    tokio::time::sleep(Duration::from_secs(6)).await;
    attacked.nothing_was_gained().await;
}

/// Many kinds one after the other, in one federation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hostile_broker_gains_nothing_in_a_short_run() {
    let config = HostileConfig { length: Duration::from_secs(20), seed: 1, trust: Trust::FirstUse, kubernetes: false };
    let report = run(config).await.unwrap();
    assert!(report.violations.is_empty(), "{report}\n{:#?}", report.violations);
}
