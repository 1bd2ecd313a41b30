//! Finds the offsets of the time zones that the documents name.

use crate::calendar::zones::{ZoneRules, Zones, zone_names};
use crate::limits::MAX_ZONES;
use crate::problem::suggest::nearest;
use crate::problem::{ProblemCode, Problems, shorten};
use crate::reading::fields::ZoneUse;

/// Where offsets come from that the source lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ZoneSource {
    /// This program's copy of the IANA database.
    LookUp,
    /// Nowhere: the source has all of them.
    Given,
}

/// The zones in use, and no others.
pub(super) fn resolve_zones(used: &[ZoneUse], given: &Zones, lookup: ZoneSource, problems: &mut Problems<'_>) -> Zones {
    let mut found = Zones::new();
    for zone in used {
        if found.contains_key(&zone.name) || problems.is_full() {
            continue;
        }
        if found.len() == MAX_ZONES {
            let message = format!("the bundle names more than {MAX_ZONES} time zones");
            problems.at(zone.place, ProblemCode::TooLarge, message, "use one of the other schedules' zones");
            break;
        }
        let rules = match (given.get(&zone.name), lookup) {
            (Some(rules), _) => rules.are_sound().then(|| rules.clone()),
            (None, ZoneSource::LookUp) => ZoneRules::look_up(&zone.name),
            (None, ZoneSource::Given) => None,
        };
        if let Some(rules) = rules {
            found.insert(zone.name.clone(), rules);
        } else {
            let known = zone_names();
            let near = nearest(&zone.name, known.iter().map(String::as_str));
            let remedy = near.map_or_else(
                || "write a name of the IANA database, such as `Europe/Zurich` or `UTC`".to_owned(),
                |near| format!("did you mean `{near}`?"),
            );
            let message = format!("there is no time zone `{}`", shorten(&zone.name));
            problems.at(zone.place, ProblemCode::UnknownTimeZone, message, remedy);
        }
    }
    found
}
