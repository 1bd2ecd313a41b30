//! Changes of peerings and of the envelopes they relay.

use comity_types::{PeeringId, PeeringState};

use crate::model::envelope::{Envelope, EnvelopeKey};
use crate::model::peering::Peering;
use crate::model::reply::Change;
use crate::state::timers::Due;
use crate::state::transition::Transition;

impl Transition<'_> {
    pub(crate) fn insert_peering(&mut self, mut peering: Peering) -> PeeringId {
        peering.revision = self.revision;
        let idle = self.settings.peering_idle;
        let records = self.records();
        records.next_peering += 1;
        let id = PeeringId(records.next_peering);
        records.derived.note_peering(id, &peering, idle);
        records.peerings.insert(id, peering);
        self.note(Change::Peering(id));
        id
    }

    pub(crate) fn change_peering(&mut self, id: PeeringId, change: impl FnOnce(&mut Peering)) {
        let (revision, idle) = (self.revision, self.settings.peering_idle);
        let records = &mut self.state.records;
        let Some(peering) = records.peerings.get_mut(&id) else { return };
        let before = peering.state;
        change(peering);
        peering.revision = revision;
        let after = peering.state;
        records.derived.note_peering(id, peering, idle);
        self.check_move(id, before, after, PeeringState::may_become);
        self.note(Change::Peering(id));
    }

    pub(crate) fn insert_envelope(&mut self, envelope: Envelope) {
        let key = envelope.key.clone();
        let records = self.records();
        records.derived.timers.set(Due::Envelope(key.clone()), Some(envelope.expires_at));
        records.envelopes.insert(key.clone(), envelope);
        self.note(Change::Envelopes(key.to));
    }

    pub(crate) fn remove_envelope(&mut self, key: &EnvelopeKey) {
        if self.state.envelopes.contains_key(key) {
            let records = self.records();
            records.envelopes.remove(key);
            records.derived.timers.set(Due::Envelope(key.clone()), None);
            self.note(Change::Envelopes(key.to.clone()));
        }
    }

    /// Deletes the envelopes of a peering for which `which` returns true.
    pub(crate) fn drop_envelopes(&mut self, peering: PeeringId, which: impl Fn(&EnvelopeKey) -> bool) {
        let Some(ends) = self.state.peerings.get(&peering) else { return };
        let keys: Vec<EnvelopeKey> = [&ends.origin, &ends.donor]
            .into_iter()
            .flat_map(|cluster| self.state.envelopes_for(cluster))
            .map(|envelope| &envelope.key)
            .filter(|key| key.peering == peering && which(key))
            .cloned()
            .collect();
        for key in &keys {
            self.remove_envelope(key);
        }
    }
}
