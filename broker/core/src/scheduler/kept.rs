//! What a plan keeps free for requests that start later: what is reserved, room that is being made, and new places of
//! leases that move aside.

use comity_policy::LeaseUse;

use crate::feasibility::snapshot::{Held, View};
use crate::feasibility::verdict::Candidate;
use crate::model::id::RequestId;
use crate::model::request::Request;
use crate::model::time::Timestamp;
use crate::scheduler::plan::{MAX_LOOKED_AT, Run};
use crate::scheduler::reserve::{Reserved, Start, end_of_start};

/// What is free for those who stay.
pub(crate) struct Strict<'a> {
    pub(crate) view: View<'a>,
    pub(crate) kept: Vec<Kept<'a>>,
}

/// What is kept free for one request.
pub(crate) struct Kept<'a> {
    request: &'a Request,
    /// What is kept, and when it is taken: who takes of it must be gone before.
    pub(crate) start: Start,
    /// When it is taken at the latest. Room that is being made lets nobody pass before.
    begins: Timestamp,
}

impl Kept<'_> {
    /// Counts its parts in, from now on; what is held so, and until when.
    pub(crate) fn take<'k>(&'k self, view: &mut View<'k>, held: &mut Vec<Held<'k>>) {
        let spec = &self.request.spec;
        let tenant = spec.tenant.as_str();
        let institution = view.bundle.tenants.get(tenant).map_or("", |tenant| tenant.spec.institution.as_str());
        let end = end_of_start(view.state, self.begins, spec.duration);
        for Candidate { placement, class, agreement, .. } in &self.start.found {
            let agreement = agreement.as_deref();
            view.take(tenant, class, agreement, placement);
            let (donor, class, gpus_milli) = (placement.donor.as_str(), class.as_str(), placement.milli());
            held.push(Held {
                end,
                counts: LeaseUse { tenant, institution, donor, class, agreement, gpus_milli, replaced: false },
                placement,
            });
        }
    }
}

impl<'a> Run<'a, '_> {
    /// For how many something is kept free.
    pub(crate) fn kept(&self) -> usize {
        self.strict.as_ref().map_or(0, |strict| strict.kept.len())
    }

    /// What is kept free for others than `request`.
    pub(crate) fn kept_for_others(&self, request: &Request) -> impl Iterator<Item = &Kept<'a>> {
        let kept = self.strict.iter().flat_map(|strict| &strict.kept);
        kept.filter(move |kept| !std::ptr::eq(kept.request, request))
    }

    /// Reserves the earliest start of a request that does not fit now; `None` if no end makes room for it.
    pub(crate) fn reserve(&mut self, id: RequestId, request: &'a Request) -> Option<Reserved> {
        let state = self.view.state;
        if self.looked_at.is_none() {
            self.hopeless.begin(state);
        }
        let looked_at = self.looked_at.get_or_insert(0);
        if *looked_at >= MAX_LOOKED_AT || self.hopeless.requests.contains(&id) {
            return None;
        }
        *looked_at += 1;
        let Some(start) = self.earliest(&request.spec) else {
            self.hopeless.requests.insert(id);
            return None;
        };
        let reserved = Reserved { request: id, at: start.at, donors: start.donors() };
        let begins = start.at;
        self.keep_free(request, start, begins);
        Some(reserved)
    }

    /// Keeps what a request starts on later, at `begins` at the latest, free of those who stay longer.
    pub(crate) fn keep_free(&mut self, request: &'a Request, start: Start, begins: Timestamp) {
        for Candidate { placement, class, agreement, .. } in &start.found {
            let strict = self.strict.get_or_insert_with(|| Strict { view: self.view.clone(), kept: Vec::new() });
            strict.view.take(request.spec.tenant.as_str(), class, agreement.as_deref(), placement);
            self.packs.take(&strict.view, placement);
        }
        if let Some(strict) = &mut self.strict {
            strict.kept.push(Kept { request, start, begins });
        }
    }
}
