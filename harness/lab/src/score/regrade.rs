//! What an earlier score told, graded again: for when the words of a right explanation have been corrected and the machine
//! that the score was measured on is not at hand.

use super::faults::kernels;
use super::run::graded;
use super::{Score, Worth};
use qdiff::diagnose::UNEXPLAINED;

/// Grades every sentence on a bug that stands in no catalogue again. What was told of a place alone stays that, and so
/// does a bug that is not known any more.
pub fn regrade(score: &mut Score) {
    for case in score.groups.iter_mut().filter(|g| g.unlisted).flat_map(|g| &mut g.cases) {
        let Some(right) = right(&case.fault.mutation) else { continue };
        let Some(told) = case.told.as_ref().filter(|_| case.worth.is_some_and(|w| w != Worth::Location)) else {
            continue;
        };
        let worth = graded(told, !told.contains(UNEXPLAINED), right);
        (case.worth, case.cause_right) = (Some(worth), worth == Worth::Right);
    }
}

/// What a right explanation of a bug has; of bugs of CUDA kernels only a build with the feature `faults` knows.
fn right(name: &str) -> Option<kernels::Told> {
    let listed = kernels::all().find(|bug| bug.name == name).map(|bug| bug.told);
    #[cfg(feature = "faults")]
    let listed = listed.or_else(|| kernels::cuda::find(name).map(|bug| bug.told));
    listed
}

#[cfg(test)]
mod tests {
    use super::super::{Case, Clean, Group, Score, Worth, regrade};
    use super::kernels;
    use qdiff::machine::Machine;
    use qdiff::mutations::CauseId;
    use qdiff_engine::model::StageId;

    fn case(fault: &str, told: String, worth: Worth) -> Case {
        let (fault, stage) =
            (CauseId { mutation: fault.to_owned(), parameters: Vec::new(), since: None }, "L00.ffn_down");
        let stage: StageId = stage.parse().unwrap();
        let (found, told, worth) = (Some(stage), Some(told), Some(worth));
        Case {
            model: String::new(),
            fault,
            stage,
            found,
            cause: None,
            ties: Vec::new(),
            others: 0,
            detected: true,
            stage_right: true,
            cause_right: worth == Some(Worth::Right),
            effect: None,
            told,
            worth,
            seconds: 0.0,
            core: 0.0,
        }
    }

    #[test]
    fn a_sentence_counts_by_todays_words_and_a_place_stays_a_place() {
        let bug = kernels::all().next().unwrap();
        let right = bug.told[0].join(" and ").to_uppercase();
        let cases = vec![
            case(bug.name, right.clone(), Worth::False),
            case(bug.name, format!("{right}, in 3 of the 9 elements that it would change"), Worth::False),
            case(bug.name, "the sum is of other terms".to_owned(), Worth::Right),
            case(bug.name, right.clone(), Worth::Location),
            case("a-bug-of-yesterday", right, Worth::False),
        ];
        let group = Group { source: "x".to_owned(), independent: true, unlisted: true, cases, pairs: Vec::new() };
        let mut score = Score {
            subject: "cpu".to_owned(),
            on: String::new(),
            command: String::new(),
            machine: Machine::this(),
            models: Vec::new(),
            groups: vec![group],
            clean: Clean::default(),
            graded: Vec::new(),
            seconds: 0.0,
        };
        regrade(&mut score);
        let worths: Vec<_> = score.groups[0].cases.iter().map(|c| (c.worth.unwrap(), c.cause_right)).collect();
        use Worth::{Consistent, False, Location, Right};
        assert_eq!(worths, [(Right, true), (Consistent, false), (False, false), (Location, false), (False, false)]);
    }
}
