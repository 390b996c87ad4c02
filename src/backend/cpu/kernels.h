// The kernel tables that each instruction set's translation unit provides.
#pragma once

#include "backend/cpu/linear_kernels.h"
#include "backend/cpu/op_kernels.h"
