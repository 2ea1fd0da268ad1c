//! What a fault changes of its stage's own output.

use super::Side;
use super::evaluate::assembled;
use super::held::Row;
use super::rows::rows_given;
use crate::capture::Filter;
use crate::oracle::Oracle;
use qdiff_engine::model::StageId;

/// How far two runs of one engine on the same tokens differ in `stage`, as a share of what is allowed there: at most 1
/// where rounding could do as much. All that the stage read must be the same in both. `None` where it was not captured,
/// or cannot be evaluated. No hypothesis has a part in it.
pub fn effect(stage: StageId, oracle: &Oracle<'_>, filter: &Filter, faulty: Side<'_>, clean: Side<'_>) -> Option<f64> {
    let node = &oracle.graph.nodes[oracle.graph.index(stage)?];
    let expected = assembled(node, oracle, clean, filter);
    let mut worst = 0f64;
    for ((faulty, clean), expected) in faulty.capture.steps.iter().zip(&clean.capture.steps).zip(&expected) {
        let (got, right, (_, bound)) = (faulty.get(stage)?, clean.get(stage)?, expected.as_ref()?);
        if got.shape != right.shape {
            return Some(f64::INFINITY);
        }
        let right = right.wide();
        for (_, range) in rows_given(node, clean, &got) {
            let row = Row::of(&got.data[range.clone()], &right.data[range.clone()], &bound[range], None);
            worst = worst.max(if row.used.is_nan() { f64::INFINITY } else { row.used });
        }
    }
    Some(worst)
}
