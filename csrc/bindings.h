/* The input of bindgen, which no source includes. */
#pragma once
#include "experts/pairs.h"
#include "experts/route.h"
#include "layer/gather.h"
#include "layer/layer.h"
#include "library.h"
