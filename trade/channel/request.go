package channel

import (
	"net/http"
	"time"
)

// SignRequest signs a request of ours to the channel. The signature of a notice covers its body only; a request says
// most in its method and its address, so the signed content is "{METHOD} {request-uri}\n{body}".
func SignRequest(r *http.Request, id string, at time.Time, body []byte, secret Secret) error {
	return SetSignature(r.Header, id, at, requestContent(r.Method, r.URL.RequestURI(), body), secret)
}

// VerifyRequest is the channel's side of SignRequest. body is what was read of r.
func VerifyRequest(r *http.Request, body []byte, now time.Time, secrets ...Secret) (id string, err error) {
	return Verify(r.Header, requestContent(r.Method, r.RequestURI, body), now, secrets...)
}

func requestContent(method, uri string, body []byte) []byte {
	return append([]byte(method+" "+uri+"\n"), body...)
}
