//! The kinds of attacks of a random run.

use std::collections::VecDeque;

use comity_proto::v1;

use super::attack_round::AttackRound;
use crate::chaos::dice::Dice;

/// One thing that a hostile broker may try.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names say it; each is described where it is carried out")]
pub enum AttackKind {
    SwapPeering,
    RelabelInstitution,
    SwapIdentityKeyOfOrigin,
    SwapIdentityKeyOfDonor,
    SwapOrigin,
    SwapDonor,
    LendToStranger,
    InventPeering,
    LieThatAllIsReady,
    AlterKeys,
    ZeroDevices,
    InflateCount,
    ExceedReserve,
    SameDeviceTwice,
    ForeignDevice,
    ExceedMaxLent,
    ExceedNode,
    ExceedTerm,
    HugeFencingToken,
    ForeignNamespace,
    VeryManyLeases,
    ReplayOldState,
    ReplayEnvelopes,
    CorruptEnvelopes,
    CrossEnvelopes,
    WrongEpoch,
    Contradict,
    SayNothingExists,
    EndLease,
    LieInAcknowledgements,
    RenewWrongly,
    SendTooMuch,
    SendGarbage,
    SendUnknownValues,
    SendMalformedIds,
    HugeEpoch,
    SkipTokens,
    ForgetEnds,
    PlantRoot,
    TakeNextRootAway,
    InventClusters,
    InventPeerings,
    InventEpochs,
    EndlessOutageGrace,
    ProlongAndGoSilent,
    HighestRevision,
    RepointDevices,
    EarlyFencingTokens,
    LateFencingToken,
    RewriteAuditHistory,
    ForgePolicy,
    HidePolicy,
    RollBackPolicy,
    DenySignatures,
    SendKeptData,
}

impl AttackKind {
    /// All kinds.
    pub const ALL: [Self; 55] = [
        Self::SwapPeering,
        Self::RelabelInstitution,
        Self::SwapIdentityKeyOfOrigin,
        Self::SwapIdentityKeyOfDonor,
        Self::SwapOrigin,
        Self::SwapDonor,
        Self::LendToStranger,
        Self::InventPeering,
        Self::LieThatAllIsReady,
        Self::AlterKeys,
        Self::ZeroDevices,
        Self::InflateCount,
        Self::ExceedReserve,
        Self::SameDeviceTwice,
        Self::ForeignDevice,
        Self::ExceedMaxLent,
        Self::ExceedNode,
        Self::ExceedTerm,
        Self::HugeFencingToken,
        Self::ForeignNamespace,
        Self::VeryManyLeases,
        Self::ReplayOldState,
        Self::ReplayEnvelopes,
        Self::CorruptEnvelopes,
        Self::CrossEnvelopes,
        Self::WrongEpoch,
        Self::Contradict,
        Self::SayNothingExists,
        Self::EndLease,
        Self::LieInAcknowledgements,
        Self::RenewWrongly,
        Self::SendTooMuch,
        Self::SendGarbage,
        Self::SendUnknownValues,
        Self::SendMalformedIds,
        Self::HugeEpoch,
        Self::SkipTokens,
        Self::ForgetEnds,
        Self::PlantRoot,
        Self::TakeNextRootAway,
        Self::InventClusters,
        Self::InventPeerings,
        Self::InventEpochs,
        Self::EndlessOutageGrace,
        Self::ProlongAndGoSilent,
        Self::HighestRevision,
        Self::RepointDevices,
        Self::EarlyFencingTokens,
        Self::LateFencingToken,
        Self::RewriteAuditHistory,
        Self::ForgePolicy,
        Self::HidePolicy,
        Self::RollBackPolicy,
        Self::DenySignatures,
        Self::SendKeptData,
    ];

    /// Its name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::SwapPeering => "swap-peering",
            Self::RelabelInstitution => "relabel-institution",
            Self::SwapIdentityKeyOfOrigin => "swap-identity-key-of-origin",
            Self::SwapIdentityKeyOfDonor => "swap-identity-key-of-donor",
            Self::SwapOrigin => "swap-origin",
            Self::SwapDonor => "swap-donor",
            Self::LendToStranger => "lend-to-stranger",
            Self::InventPeering => "invent-peering",
            Self::LieThatAllIsReady => "lie-that-all-is-ready",
            Self::AlterKeys => "alter-keys",
            Self::ZeroDevices => "zero-devices",
            Self::InflateCount => "inflate-count",
            Self::ExceedReserve => "exceed-reserve",
            Self::SameDeviceTwice => "same-device-twice",
            Self::ForeignDevice => "foreign-device",
            Self::ExceedMaxLent => "exceed-max-lent",
            Self::ExceedNode => "exceed-node",
            Self::ExceedTerm => "exceed-term",
            Self::HugeFencingToken => "huge-fencing-token",
            Self::ForeignNamespace => "foreign-namespace",
            Self::VeryManyLeases => "very-many-leases",
            Self::ReplayOldState => "replay-old-state",
            Self::ReplayEnvelopes => "replay-envelopes",
            Self::CorruptEnvelopes => "corrupt-envelopes",
            Self::CrossEnvelopes => "cross-envelopes",
            Self::WrongEpoch => "wrong-epoch",
            Self::Contradict => "contradict",
            Self::SayNothingExists => "say-nothing-exists",
            Self::EndLease => "end-lease",
            Self::LieInAcknowledgements => "lie-in-acknowledgements",
            Self::RenewWrongly => "renew-wrongly",
            Self::SendTooMuch => "send-too-much",
            Self::SendGarbage => "send-garbage",
            Self::SendUnknownValues => "send-unknown-values",
            Self::SendMalformedIds => "send-malformed-ids",
            Self::HugeEpoch => "huge-epoch",
            Self::SkipTokens => "skip-tokens",
            Self::ForgetEnds => "forget-ends",
            Self::PlantRoot => "plant-root",
            Self::TakeNextRootAway => "take-next-root-away",
            Self::InventClusters => "invent-clusters",
            Self::InventPeerings => "invent-peerings",
            Self::InventEpochs => "invent-epochs",
            Self::EndlessOutageGrace => "endless-outage-grace",
            Self::ProlongAndGoSilent => "prolong-and-go-silent",
            Self::HighestRevision => "highest-revision",
            Self::RepointDevices => "repoint-devices",
            Self::EarlyFencingTokens => "early-fencing-tokens",
            Self::LateFencingToken => "late-fencing-token",
            Self::RewriteAuditHistory => "rewrite-audit-history",
            Self::ForgePolicy => "forge-policy",
            Self::HidePolicy => "hide-policy",
            Self::RollBackPolicy => "roll-back-policy",
            Self::DenySignatures => "deny-signatures",
            Self::SendKeptData => "send-kept-data",
        }
    }

    /// Those whose effect is on the agents' disks, where it is looked at after the run: they end it.
    pub(crate) const AT_THE_END: [Self; 2] = [Self::InventEpochs, Self::EndlessOutageGrace];

    /// Whether it waits for something that takes more than a few seconds: renewals, or the end of a lease.
    const fn is_slow(self) -> bool {
        matches!(
            self,
            Self::RenewWrongly
                | Self::PlantRoot
                | Self::TakeNextRootAway
                | Self::ProlongAndGoSilent
                | Self::HighestRevision
                | Self::EarlyFencingTokens
        )
    }

    /// The kinds in the order of a run: each once, in a random order, before any is repeated. The slow ones come last, so
    /// that a short run tries many.
    #[must_use]
    pub(crate) fn shuffled(dice: &mut Dice) -> VecDeque<Self> {
        let mut kinds = Self::ALL.to_vec();
        for index in (1..kinds.len()).rev() {
            kinds.swap(index, dice.index(index + 1));
        }
        kinds.sort_by_key(|kind| kind.is_slow());
        kinds.into()
    }

    /// Carries it out; the agents act on it afterwards.
    pub(crate) async fn attack(self, round: &mut AttackRound<'_>) {
        match self {
            Self::SwapPeering => drop(round.swap_peering().await),
            Self::RelabelInstitution => drop(round.relabel_institution().await),
            Self::SwapIdentityKeyOfOrigin => drop(round.impersonate(v1::Side::Origin, "").await),
            Self::SwapIdentityKeyOfDonor => drop(round.impersonate(v1::Side::Donor, "").await),
            Self::SwapOrigin => drop(round.swap_origin().await),
            Self::SwapDonor => drop(round.swap_donor().await),
            Self::LendToStranger => drop(round.lend_to_stranger().await),
            Self::InventPeering => round.invent_peering(),
            Self::LieThatAllIsReady => round.lie_that_all_is_ready(),
            Self::AlterKeys => round.alter_keys().await,
            Self::ZeroDevices => {
                let count = [1, 64, 1_000_000, u64::MAX][round.dice.index(4)];
                round.zero_devices(count);
            }
            Self::InflateCount => round.inflate_count(),
            Self::ExceedReserve => drop(round.exceed_reserve()),
            Self::SameDeviceTwice => round.same_device_twice(),
            Self::ForeignDevice => round.foreign_device(),
            Self::ExceedMaxLent => round.exceed_max_lent(),
            Self::ExceedNode => round.exceed_node(),
            Self::ExceedTerm => round.exceed_term(),
            Self::HugeFencingToken => {
                let token = [u64::MAX, u64::MAX - 1, 1 << 63, 1 << 40][round.dice.index(4)];
                let state = [v1::LeaseState::Placed, v1::LeaseState::Ending][round.dice.index(2)];
                round.huge_fencing_token(token, state);
            }
            Self::ForeignNamespace => round.foreign_namespace(),
            Self::VeryManyLeases => round.very_many_leases(),
            Self::ReplayOldState => round.replay_old_state(),
            Self::ReplayEnvelopes => round.replay_envelopes(),
            Self::CorruptEnvelopes => round.corrupt_envelopes().await,
            Self::CrossEnvelopes => round.cross_envelopes().await,
            Self::WrongEpoch => round.wrong_epoch(),
            Self::Contradict => round.contradict(),
            Self::SayNothingExists => round.say_nothing_exists(),
            Self::EndLease => round.end_lease(),
            Self::LieInAcknowledgements => round.lie_in_acknowledgements(),
            Self::RenewWrongly => round.renew_wrongly().await,
            Self::SendTooMuch => round.send_too_much(),
            Self::SendGarbage => round.send_garbage(),
            Self::SendUnknownValues => round.send_unknown_values(),
            Self::SendMalformedIds => round.send_malformed_ids(),
            Self::HugeEpoch => round.huge_epoch().await,
            Self::SkipTokens => round.skip_tokens().await,
            Self::ForgetEnds => round.forget_ends().await,
            Self::PlantRoot => round.plant_root().await,
            Self::TakeNextRootAway => round.take_next_root_away().await,
            Self::InventClusters => round.invent_clusters().await,
            Self::InventPeerings => round.invent_peerings(),
            Self::InventEpochs => round.invent_epochs().await,
            Self::EndlessOutageGrace => round.endless_outage_grace().await,
            Self::RewriteAuditHistory => round.rewrite_audit_history().await,
            Self::ProlongAndGoSilent => round.prolong_and_go_silent().await,
            Self::HighestRevision => round.highest_revision().await,
            Self::RepointDevices => round.repoint_devices(),
            Self::EarlyFencingTokens => round.early_fencing_tokens().await,
            Self::LateFencingToken => round.late_fencing_token(),
            Self::ForgePolicy => drop(round.forge_policy()),
            Self::HidePolicy => drop(round.hide_policy()),
            Self::RollBackPolicy => drop(round.roll_back_policy()),
            Self::DenySignatures => drop(round.deny_signatures()),
            Self::SendKeptData => drop(round.send_kept_data()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_run_tries_every_kind_once_before_it_repeats_any() {
        let (one, other) = (AttackKind::shuffled(&mut Dice::new(1)), AttackKind::shuffled(&mut Dice::new(2)));
        assert_ne!(one, other);
        assert_eq!(one, AttackKind::shuffled(&mut Dice::new(1)));
        for kinds in [one, other] {
            assert_eq!(kinds.into_iter().collect::<BTreeSet<_>>(), AttackKind::ALL.into());
        }
        assert_eq!(AttackKind::ALL.map(AttackKind::name).into_iter().collect::<BTreeSet<_>>().len(), 55);
    }
}
