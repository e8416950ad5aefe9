package idempotency

import (
	"net/http"
	"testing"
)

func TestAnAnswerAboutTheMomentMayBeOtherwiseTheNextTime(t *testing.T) {
	moment := map[int]bool{
		http.StatusUnauthorized: true, http.StatusForbidden: true, http.StatusNotFound: true, http.StatusRequestTimeout: true,
		http.StatusRequestEntityTooLarge: true, http.StatusUnsupportedMediaType: true, http.StatusTooManyRequests: true,
	}
	for status := 200; status < 600; status++ {
		if want := status < 500 && !moment[status]; recordable(status) != want {
			t.Errorf("%d is recorded: %t", status, !want)
		}
	}
}
