//! Checks request templates against the limits that apply to every request.

use crate::amounts::{show_duration, show_gpus};
use crate::compile::draft::Draft;
use crate::documents::{Document, RequestTemplate};
use crate::limits::MAX_TEMPLATES;
use crate::problem::{ProblemCode, Problems};

/// Reports templates from which nobody could ever make a request, and too many templates.
pub(super) fn check(draft: &Draft, problems: &mut Problems<'_>) {
    if let Some(template) = draft.templates.values().nth(MAX_TEMPLATES) {
        let message =
            format!("the bundle has {} RequestTemplates; at most {MAX_TEMPLATES} are allowed", draft.templates.len());
        problems.at(template.place, ProblemCode::TooLarge, message, "remove those that nobody uses");
    }
    for template in draft.templates.values() {
        check_duration(template, draft, problems);
        check_gpus(template, draft, problems);
        check_priority(template, draft, problems);
    }
}

fn check_duration(template: &Document<RequestTemplate>, draft: &Draft, problems: &mut Problems<'_>) {
    let [federation] = draft.federations.as_slice() else { return };
    let longest = federation.spec.limits.max_lease_duration_ms;
    let Some(duration) = template.spec.request.duration_ms.filter(|duration| *duration > longest) else { return };
    let message = format!(
        "`request.duration: {}` of RequestTemplate `{}` is longer than the longest lease (`limits.maxLeaseDuration` of \
         the Federation, {})",
        show_duration(duration),
        template.name,
        show_duration(longest)
    );
    let place = template.place_of("request.duration");
    problems.at(place, ProblemCode::Contradiction, message, format!("write at most {}", show_duration(longest)));
}

fn check_gpus(template: &Document<RequestTemplate>, draft: &Draft, problems: &mut Problems<'_>) {
    let [federation] = draft.federations.as_slice() else { return };
    let (limit, most) = (federation.spec.limits.max_gpus_per_request_milli, template.spec.request.most_milli());
    if most <= limit {
        return;
    }
    let message = format!(
        "`request` of RequestTemplate `{}` asks for {} GPUs, more than `limits.maxGpusPerRequest` of the Federation ({})",
        template.name,
        show_gpus(most),
        show_gpus(limit)
    );
    let place = template.place_of("request.gpus.amount");
    problems.at(place, ProblemCode::Contradiction, message, format!("ask for at most {}", show_gpus(limit)));
}

/// Whoever is offered a template must be able to use its priority class.
fn check_priority(template: &Document<RequestTemplate>, draft: &Draft, problems: &mut Problems<'_>) {
    let Some(name) = &template.spec.request.priority else { return };
    let Some(class) = draft.priorities.get(name) else { return };
    let offered = |tenant: &str, institution: &str| template.spec.is_offered_to(tenant, institution);
    let barred = draft.tenants.values().find(|tenant| {
        let institution = tenant.spec.institution.as_str();
        offered(&tenant.name, institution) && !class.spec.serves(&tenant.name, institution)
    });
    if let Some(tenant) = barred {
        let message = format!(
            "RequestTemplate `{}` is offered to Tenant `{}`, which may not use PriorityClass `{name}`",
            template.name, tenant.name
        );
        let remedy = "name those who may use the class in `offeredTo`, or another class in `request.priority`";
        problems.at(template.place_of("request.priority"), ProblemCode::Contradiction, message, remedy);
    }
}
