//! Tensors of candle.

use crate::{Array, Element, Elements};
use candle_core::{DType, Tensor, WithDType};

/// In f32, f64, f16, bf16, i32 or i64; from another device they are copied here.
impl Array for Tensor {
    fn elements(&self) -> Result<Elements, String> {
        fn of<T: Element + WithDType>(tensor: &Tensor) -> candle_core::Result<Elements> {
            Ok(Elements::of(tensor.dims().to_vec(), tensor.flatten_all()?.to_vec1::<T>()?))
        }
        let elements = match self.dtype() {
            DType::F32 => of::<f32>(self),
            DType::F64 => of::<f64>(self),
            DType::F16 => of::<half::f16>(self),
            DType::BF16 => of::<half::bf16>(self),
            DType::I32 => of::<i32>(self),
            DType::I64 => of::<i64>(self),
            other => return Err(format!("tensors of candle in {} are not dumped", other.as_str())),
        };
        elements.map_err(|e| e.to_string())
    }
}
